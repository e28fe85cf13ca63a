"""Small things every handler needs: request ids, bodies, JSON answers, event streams."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11

from gateway.admission import Admission, Meter
from gateway.envelopes import envelope_for
from gateway.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    GatewayError,
    InvalidRequestError,
    SlowClientError,
)
from gateway.ledger import Ledger
from gateway.service import Service
from gateway.tenants import DEFAULT_TENANT, Tenant
from gateway.verdicts import verdict

SERVICE: web.AppKey[Service] = web.AppKey("service", Service)
REQUEST_ID_HEADER = "X-Request-Id"
EVENT_STREAM = "text/event-stream; charset=utf-8"

_UNBUFFERED_BYTES = 32 * 2**10  # so much fits the buffer of a connection that is up to date
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)


@dataclass(slots=True)
class Record:
    """What is said of a request when it is over."""

    request_id: str  # what the client sees; never an id inside
    started: float = 0.0  # by the service's clock
    tenant: Tenant = DEFAULT_TENANT  # whose request it is
    is_admin: bool = False  # sent by the operator
    meter: Meter | None = None  # of the tenant; None: it is nobody's
    admission: Admission | None = None  # None: it only looks, or was not let pass
    is_refused: bool = False  # for what its tenant may have
    ledger: Ledger | None = None  # None: it never came to generating
    error_code: str | None = None


_RECORD = web.RequestKey("record", Record)


def begin_record(request: web.BaseRequest, new_id: Callable[[], str]) -> Record:
    """Open the request's record, under the client's own id if that is short and safe."""
    record = Record(shown_request_id(request, new_id))
    request[_RECORD] = record
    return record


def record_of(request: web.BaseRequest) -> Record:
    """Return the request's record; the outermost middleware has opened it."""
    return request[_RECORD]


def shown_request_id(request: web.BaseRequest, new_id: Callable[[], str]) -> str:
    """Return the id that the answer carries: the client's if it is safe to repeat, or a new one."""
    asked = request.headers.get(REQUEST_ID_HEADER, "")
    return asked if _SAFE_ID.fullmatch(asked) else f"req_{new_id()}"


async def read_body(request: web.Request) -> bytes:
    """Return the whole body. A client that waits for 100-continue gets it here, not before.

    Raises:
        BodyTooLargeError: the declared or the actual length is over the limit.
        BodyTimeoutError: it did not arrive in time.
        InvalidRequestError: it broke off or cannot be decompressed, or an unknown expectation.
    """
    config = request.app[SERVICE].config
    declared_bytes = request.content_length or 0
    if declared_bytes > config.max_body_bytes:
        raise BodyTooLargeError(config.max_body_bytes, declared_bytes)
    await _let_continue(request)
    try:
        if request.content.is_eof():  # all of it is here, so that it needs no timer
            return await request.read()
        async with asyncio.timeout(config.body_seconds):
            return await request.read()
    except TimeoutError as error:
        raise BodyTimeoutError(
            f"the body did not arrive within {config.body_seconds:g} seconds"
        ) from error
    except web.HTTPRequestEntityTooLarge as error:
        raise BodyTooLargeError(config.max_body_bytes) from error
    except web.RequestPayloadError as error:
        raise InvalidRequestError("the body broke off or cannot be decoded") from error


async def defer_continue(request: web.Request) -> None:
    """Take note of an Expect header and do nothing yet: the request is judged first."""


def json_response(body: bytes) -> web.Response:
    """Return `body` (JSON) as a successful answer."""
    return web.Response(body=body, content_type="application/json")


def reply(value: object) -> web.Response:
    """Return `value` as JSON, as a successful answer."""
    return json_response(msgspec.json.encode(value))


def error_response(request: web.BaseRequest, error: BaseException, request_id: str) -> web.Response:
    """Return the answer to `error`: judged by `gateway.verdicts`, told in the request's dialect."""
    judged, envelope = verdict(error), envelope_for(request)
    response = web.Response(
        body=envelope.body(error, request_id),
        status=envelope.status(judged),
        content_type="application/json",
    )
    if judged.retry_after_seconds is not None:
        response.headers[hdrs.RETRY_AFTER] = str(judged.retry_after_seconds)
    if isinstance(error, GatewayError):
        response.headers.update(error.headers)
    if isinstance(error, web.HTTPMethodNotAllowed):
        response.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
    return response


def data_frame(data: bytes) -> bytes:
    """Return `data` (one line) as a server-sent event."""
    return b"data: %b\n\n" % data


def event_frame(name: str, data: bytes) -> bytes:
    """Return `data` (one line) as a server-sent event called `name`."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


class EventSink:
    """One answer sent bit by bit, as server-sent events where nothing else is said."""

    def __init__(self, request: web.Request, content_type: str = EVENT_STREAM) -> None:
        self._request = request
        self._write_seconds = request.app[SERVICE].config.write_seconds
        self._writer: AbstractStreamWriter | None = None
        self._transport: asyncio.Transport | None = None
        self.response = web.StreamResponse(
            headers={
                hdrs.CONTENT_TYPE: content_type,
                hdrs.CACHE_CONTROL: "no-cache",
                "X-Accel-Buffering": "no",
            }
        )

    async def open(self) -> None:
        """Send the headers; from here on errors are events."""
        self._writer = await self.response.prepare(self._request)
        self._transport = self._request.transport

    async def send(self, frame: bytes) -> None:
        """Send whole events, waiting while the client does not read.

        Raises:
            SlowClientError: it did not read for `write_seconds`.
            ConnectionResetError: it has gone.
        """
        assert self._writer is not None  # `open` has set it
        if self._is_up_to_date() and len(frame) <= _UNBUFFERED_BYTES:
            await self._writer.write(frame)  # cannot wait, so that it needs no timer
            return
        try:
            async with asyncio.timeout(self._write_seconds):
                await self._writer.write(frame)
        except TimeoutError as error:
            raise SlowClientError(
                f"the client took nothing for {self._write_seconds:g} seconds"
            ) from error

    def _is_up_to_date(self) -> bool:
        """Whether all that was sent so far has left this process."""
        transport = self._transport
        return transport is not None and transport.get_write_buffer_size() == 0

    async def close(self, last: bytes = b"") -> None:
        """End the stream in good order, with the last events in the same write."""
        if self._is_up_to_date() and len(last) <= _UNBUFFERED_BYTES:
            await self.response.write_eof(last)
            return
        try:
            async with asyncio.timeout(self._write_seconds):
                await self.response.write_eof(last)
        except TimeoutError as error:
            raise SlowClientError("the client does not take the end of its stream") from error


async def _let_continue(request: web.Request) -> None:
    expected = request.headers.get(hdrs.EXPECT)
    if expected is None or request.version < HttpVersion11:
        return
    if expected.lower() != "100-continue":
        raise InvalidRequestError("the only expectation known is 100-continue", "Expect")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # what follows is the answer's first byte
