"""One exchange, for every dialect: a body is read, made a call off the event loop, and answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from aiohttp import web

from gateway.api.answers import ReplyShape, answer
from gateway.api.bodies import too_deep
from gateway.http import EVENT_STREAM, SERVICE, read_body, record_of
from gateway.served import Call
from gateway.service import Service
from gateway.tenants import Tenant

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for: what the engine does, and how the answer looks."""

    call: Call
    shape: ReplyShape
    stream: bool
    stream_type: str = EVENT_STREAM  # the content type of a stream


async def read_work(request: web.Request, work: Callable[[Service, Tenant, bytes], _T]) -> _T:
    """Read a body and return what `work` makes of it, off the event loop.

    Raises:
        InvalidRequestError: it can be read, but is nested too deeply to be written again.
    """
    service = request.app[SERVICE]
    service.served()  # before the body is read
    body = await read_body(request)
    tenant = record_of(request).tenant
    try:
        return await service.encode(partial(work, service, tenant, body))
    except RecursionError as error:
        raise too_deep(body) from error


async def answer_body(
    request: web.Request, ask: Callable[[Service, Tenant, bytes], Asked]
) -> web.StreamResponse:
    """Read a body, have `ask` make a call of it off the event loop, and answer in its shape.

    Raises: as `read_work`.
    """
    asked = await read_work(request, ask)
    stream_type = asked.stream_type if asked.stream else None
    return await answer(request, asked.call, asked.shape, stream_type=stream_type)
