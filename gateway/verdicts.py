"""The one table that turns any error into an HTTP answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from gateway.error_replies import ErrorObject, ErrorReply
from gateway.errors import (
    AccessRefusedError,
    BodyTimeoutError,
    BodyTooLargeError,
    CachedContentNotFoundError,
    ChangeRefusedError,
    ContextLengthError,
    DrainingError,
    GatewayError,
    GenerationFailedError,
    HostRefusedError,
    InvalidRequestError,
    ModelNotFoundError,
    ModelRefusedError,
    MonthlyQuotaError,
    NotReadyError,
    NotSupportedError,
    OriginRefusedError,
    OverLimitError,
    OverloadedError,
    PreviousResponseNotFoundError,
    PromptConflictError,
    PromptNotFoundError,
    RateLimitedError,
    ResponseNotFoundError,
    RetiredVersionError,
    SlowClientError,
    TenantBusyError,
    TooManyCachedContentsError,
    UnauthenticatedError,
    UnknownTenantError,
    UnsupportedFieldError,
)
from prefixcache.errors import PrefixCacheError, TemplateError, TextError, TokenIdError
from prefixcache.types import FailureKind


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an error is answered: status, OpenAI's type and code, and when to come back.

    `param` is the field at fault where the error itself cannot know.
    """

    status: int
    type: str
    code: str | None = None
    retry_after_seconds: int | None = None
    param: str | None = None


_ASKED_WRONG = "invalid_request_error"
_OUR_FAULT = "server_error"
_LIMITED = "rate_limit_error"
_INTERNAL = Verdict(500, _OUR_FAULT, "internal_error")
_OVERLOADED = Verdict(429, _LIMITED, "overloaded", retry_after_seconds=1)

_VERDICTS: Mapping[type[BaseException] | FailureKind, Verdict] = {
    # the body
    InvalidRequestError: Verdict(400, _ASKED_WRONG, "invalid_value"),
    UnsupportedFieldError: Verdict(400, _ASKED_WRONG, "unsupported_parameter"),
    TemplateError: Verdict(400, _ASKED_WRONG, "invalid_messages", param="messages"),
    TextError: Verdict(400, _ASKED_WRONG, "invalid_value"),
    TokenIdError: Verdict(400, _ASKED_WRONG, "invalid_value"),
    ContextLengthError: Verdict(400, _ASKED_WRONG, "context_length_exceeded"),
    BodyTimeoutError: Verdict(408, _ASKED_WRONG, "body_timeout"),
    BodyTooLargeError: Verdict(413, _ASKED_WRONG, "body_too_large"),
    SlowClientError: Verdict(408, _ASKED_WRONG, "client_too_slow"),
    # who asks, and from where
    UnauthenticatedError: Verdict(401, _ASKED_WRONG, "invalid_api_key"),
    AccessRefusedError: Verdict(403, _ASKED_WRONG, "access_refused"),
    HostRefusedError: Verdict(403, _ASKED_WRONG, "host_refused"),
    OriginRefusedError: Verdict(403, _ASKED_WRONG, "origin_refused"),
    # what a tenant may have
    ModelRefusedError: Verdict(403, _ASKED_WRONG, "model_refused"),
    RateLimitedError: Verdict(429, _LIMITED, "rate_limit_exceeded"),
    TenantBusyError: Verdict(429, _LIMITED, "too_many_requests", retry_after_seconds=1),
    MonthlyQuotaError: Verdict(429, "insufficient_quota", "insufficient_quota"),
    OverLimitError: Verdict(429, _LIMITED, "request_over_limit"),
    TooManyCachedContentsError: Verdict(429, _LIMITED, "too_many_cached_contents"),
    # what is named is not there
    ModelNotFoundError: Verdict(404, _ASKED_WRONG, "model_not_found"),
    ResponseNotFoundError: Verdict(404, _ASKED_WRONG, "response_not_found"),
    PreviousResponseNotFoundError: Verdict(400, _ASKED_WRONG, "previous_response_not_found"),
    CachedContentNotFoundError: Verdict(404, _ASKED_WRONG, "cached_content_not_found"),
    PromptNotFoundError: Verdict(404, _ASKED_WRONG, "prompt_not_found"),
    RetiredVersionError: Verdict(404, _ASKED_WRONG, "retired_version"),
    UnknownTenantError: Verdict(404, _ASKED_WRONG, "tenant_not_found"),
    # what the server can do now
    PromptConflictError: Verdict(409, _ASKED_WRONG, "prompt_conflict"),
    NotSupportedError: Verdict(501, _OUR_FAULT, "not_supported"),
    ChangeRefusedError: Verdict(400, _ASKED_WRONG, "change_refused"),
    OverloadedError: _OVERLOADED,
    NotReadyError: Verdict(503, _OUR_FAULT, "not_ready", retry_after_seconds=2),
    DrainingError: Verdict(503, _OUR_FAULT, "draining", retry_after_seconds=5),
    # how the engine ended it
    FailureKind.TOO_LARGE: Verdict(400, _ASKED_WRONG, "context_length_exceeded"),
    FailureKind.INVALID: Verdict(400, _ASKED_WRONG, "invalid_value"),
    FailureKind.GRAMMAR: Verdict(400, _ASKED_WRONG, "invalid_value"),
    FailureKind.DEADLINE: Verdict(408, _ASKED_WRONG, "deadline_exceeded"),
    FailureKind.OVERLOADED: _OVERLOADED,
    FailureKind.INTERNAL: _INTERNAL,
    FailureKind.QUEUE_TIMEOUT: Verdict(503, _OUR_FAULT, "queue_timeout", retry_after_seconds=5),
    FailureKind.CANCELLED: Verdict(503, _OUR_FAULT, "cancelled", retry_after_seconds=5),
    FailureKind.WORKER_DIED: Verdict(503, _OUR_FAULT, "worker_died", retry_after_seconds=2),
}


def verdict(error: BaseException) -> Verdict:
    """Return how `error` is answered; what the table does not know is our fault: 500."""
    if isinstance(error, GenerationFailedError):
        return _VERDICTS[error.kind]
    if isinstance(error, web.HTTPException):
        return Verdict(error.status, _ASKED_WRONG if error.status < 500 else _OUR_FAULT)
    known = (_VERDICTS[kind] for kind in type(error).__mro__ if kind in _VERDICTS)
    return next(known, _INTERNAL)


def is_expected(error: BaseException) -> bool:
    """Return whether `error` was raised on purpose, so that its text may be shown."""
    return isinstance(error, (GatewayError, PrefixCacheError, web.HTTPException))


def shown_message(error: BaseException) -> str:
    """Return what is told of `error`. Text of unexpected errors stays inside."""
    message = str(error) if is_expected(error) else "internal error"
    return message.encode("utf-8", "replace").decode("utf-8") or verdict(error).code or "error"


def envelope(error: BaseException) -> bytes:
    """Return OpenAI's JSON error object for `error`. Text of unexpected errors stays inside."""
    judged = verdict(error)
    shown = ErrorObject(
        message=shown_message(error),
        type=judged.type,
        param=getattr(error, "param", None) or judged.param,
        code=judged.code,
    )
    return msgspec.json.encode(ErrorReply(error=shown))
