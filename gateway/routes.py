"""Routes as values: what a path answers, and what its description says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import msgspec
from aiohttp import hdrs, web

from gateway.http import defer_continue

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

READ_ERRORS = (401, 403, 408)  # what any route can answer before its handler looks at anything
BODY_ERRORS = (*READ_ERRORS, 400, 413, 429)
ANSWER_ERRORS = (*BODY_ERRORS, 404, 500, 503)  # of routes that run the model


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong, in OpenAI's words."""

    message: str
    type: str
    param: str | None  # the field at fault
    code: str | None


class ErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope that OpenAI's clients look for errors in."""

    error: ErrorObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path. The router and /openapi.json are both made of these."""

    method: str
    path: str  # as aiohttp writes it, such as /v1/models/{model:.+}
    handler: Handler
    summary: str  # one sentence, for people
    dialect: str  # whose clients it is for
    body: type | None = None  # JSON; None: it takes none
    query: type[msgspec.Struct] | None = None  # its fields are the parameters
    answer: type | None = None  # JSON on success; None: some other text
    streams: bool = False  # may answer with server-sent events instead
    errors: tuple[int, ...] = READ_ERRORS
    error: type = ErrorReply


def add_routes(router: web.UrlDispatcher, routes: Iterable[Route]) -> None:
    """Add `routes` to `router`. Those with a body judge a request before they let it be sent."""
    for route in routes:
        if route.method == hdrs.METH_GET:
            router.add_get(route.path, route.handler)  # and HEAD
        else:
            expect = None if route.body is None else defer_continue
            router.add_route(route.method, route.path, route.handler, expect_handler=expect)
