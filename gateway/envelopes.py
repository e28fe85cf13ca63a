"""How each dialect tells of an error: the status, the JSON, and the event in a stream that runs.

Which one a request gets follows from its path, so that unknown routes and what goes wrong before
a handler are told in the client's own dialect, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Protocol

import msgspec
from aiohttp import web

from gateway.error_replies import (
    AnthropicError,
    AnthropicErrorReply,
    GoogleError,
    GoogleErrorInfo,
    GoogleErrorReply,
)
from gateway.verdicts import Verdict, envelope, shown_message, verdict

_ANTHROPIC_PATHS = re.compile(r"/v1/messages(/|\Z)")
_GOOGLE_PATHS = re.compile(r"/v1beta(/|\Z)|/v1/cachedContents(/|\Z)|/v1/models/.+:[a-zA-Z]+\Z")
_SHARED_PATHS = re.compile(r"/v1/models(/|\Z)")
_GOOGLE_HEADERS = frozenset({"x-goog-api-client", "x-goog-api-key"})
OVERLOADED_STATUS = 529  # Anthropic's own; elsewhere a full queue is a 429

_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    OVERLOADED_STATUS: "overloaded_error",
}
_GOOGLE_STATUSES: Mapping[int, str] = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class Envelope(Protocol):
    """One dialect's way to tell of an error. Text of unexpected errors stays inside."""

    id_headers: tuple[str, ...]  # the headers that carry the request's id

    def status(self, judged: Verdict) -> int:
        """Return the HTTP status for an error that was judged so."""

    def body(self, error: BaseException, request_id: str) -> bytes:
        """Return the error as a JSON object."""

    def event(self, error: BaseException, request_id: str) -> bytes:
        """Return the error as what ends a stream that has begun."""


class OpenAIEnvelope:
    """{"error": {message, type, param, code}}."""

    id_headers: tuple[str, ...] = ("X-Request-Id",)

    def status(self, judged: Verdict) -> int:
        """See `Envelope`."""
        return judged.status

    def body(self, error: BaseException, request_id: str) -> bytes:
        """See `Envelope`."""
        return envelope(error)

    def event(self, error: BaseException, request_id: str) -> bytes:
        """See `Envelope`."""
        return b"data: %b\n\n" % envelope(error)


class AnthropicEnvelope:
    """{"type": "error", "error": {type, message}, "request_id"}."""

    id_headers: tuple[str, ...] = ("X-Request-Id", "request-id")

    def status(self, judged: Verdict) -> int:
        """See `Envelope`."""
        return OVERLOADED_STATUS if judged.code == "overloaded" else judged.status

    def body(self, error: BaseException, request_id: str) -> bytes:
        """See `Envelope`."""
        status = self.status(verdict(error))
        default = "invalid_request_error" if status < 500 else "api_error"
        kind = _ANTHROPIC_TYPES.get(status, default)
        shown = AnthropicError(type=kind, message=shown_message(error))
        return msgspec.json.encode(AnthropicErrorReply(error=shown, request_id=request_id))

    def event(self, error: BaseException, request_id: str) -> bytes:
        """See `Envelope`."""
        return b"event: error\ndata: %b\n\n" % self.body(error, request_id)


class GoogleEnvelope:
    """{"error": {code, message, status, details}}, in server-sent events or a JSON array."""

    id_headers: tuple[str, ...] = ("X-Request-Id",)

    def __init__(self, *, in_events: bool) -> None:
        self._in_events = in_events

    def status(self, judged: Verdict) -> int:
        """See `Envelope`."""
        return judged.status

    def body(self, error: BaseException, request_id: str) -> bytes:
        """See `Envelope`."""
        judged = verdict(error)
        default = "INVALID_ARGUMENT" if judged.status < 500 else "INTERNAL"
        reason = (judged.code or default).upper()
        shown = GoogleError(
            code=judged.status,
            message=shown_message(error),
            status=_GOOGLE_STATUSES.get(judged.status, default),
            details=[GoogleErrorInfo(reason=reason, metadata={"requestId": request_id})],
        )
        return msgspec.json.encode(GoogleErrorReply(error=shown))

    def event(self, error: BaseException, request_id: str) -> bytes:
        """See `Envelope`."""
        body = self.body(error, request_id)
        return b"data: %b\r\n\r\n" % body if self._in_events else b",\r\n%b]" % body


_OPENAI, _ANTHROPIC = OpenAIEnvelope(), AnthropicEnvelope()
_GOOGLE_EVENTS, _GOOGLE_ARRAY = GoogleEnvelope(in_events=True), GoogleEnvelope(in_events=False)


class Dialect(Enum):
    """Whose API a request speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GOOGLE = "google"


def dialect_of(request: web.BaseRequest) -> Dialect:
    """Return the dialect of a request: its path tells, and for /v1/models its client's headers."""
    path = request.path
    if _GOOGLE_PATHS.match(path):
        return Dialect.GOOGLE
    if _ANTHROPIC_PATHS.match(path):
        return Dialect.ANTHROPIC
    if _SHARED_PATHS.match(path):
        if not _GOOGLE_HEADERS.isdisjoint(name.lower() for name in request.headers):
            return Dialect.GOOGLE
        if "anthropic-version" in request.headers:
            return Dialect.ANTHROPIC
    return Dialect.OPENAI


def envelope_for(request: web.BaseRequest) -> Envelope:
    """Return how errors of `request` are told."""
    match dialect_of(request):
        case Dialect.ANTHROPIC:
            return _ANTHROPIC
        case Dialect.GOOGLE:
            return _GOOGLE_EVENTS if request.query.get("alt") == "sse" else _GOOGLE_ARRAY
        case Dialect.OPENAI:
            return _OPENAI
