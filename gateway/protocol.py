"""The connection handler: what arrives that is no HTTP gets our kind of error, too."""

from __future__ import annotations

import logging
import uuid

from aiohttp import web

from gateway.errors import InvalidRequestError
from gateway.http import REQUEST_ID_HEADER, error_response, shown_request_id

_log = logging.getLogger(__name__)


class Connection(web.RequestHandler):
    """A client's connection.

    Requests that cannot even be parsed never reach the application; here they are answered in
    the same envelope, with a request id, and leave one log line that repeats nothing of theirs.
    """

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to what went wrong outside the application, and close after it."""
        if isinstance(exc, ConnectionError):  # nobody is there; the middleware has taken note
            raise ConnectionAbortedError("the client has gone") from exc
        request_id = shown_request_id(request, lambda: uuid.uuid4().hex)
        if status < 500:
            _log.info("no HTTP request: %s id=%s", type(exc).__name__, request_id)
            error: BaseException = InvalidRequestError("the request is not valid HTTP")
        else:
            _log.error("request %s failed outside its handler", request_id, exc_info=exc)
            error = exc if exc is not None else RuntimeError("unknown")
        if request.writer.output_size > 0:
            raise ConnectionAbortedError("the answer had already begun")
        response = error_response(request, error, request_id)
        response.headers[REQUEST_ID_HEADER] = request_id
        response.force_close()
        return response
