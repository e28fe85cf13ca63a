"""The gateway's errors, and the one table that turns any error into an HTTP answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import hdrs, web

from gateway.error_replies import ErrorObject, ErrorReply
from prefixcache.errors import PrefixCacheError, TemplateError, TextError, TokenIdError
from prefixcache.types import FailureKind


class GatewayError(Exception):
    """Root of every error that the gateway raises on purpose."""

    param: str | None = None  # the field of the request that is at fault

    @property
    def headers(self) -> Mapping[str, str]:
        """What the answer says beside its body."""
        return {}


class StartError(GatewayError):
    """The server cannot start: its address, its model or its worker; the text says why."""


class BadModelError(StartError):
    """The server cannot start with the model or the engine's settings that it was given."""


class InvalidRequestError(GatewayError):
    """A field of the request, or the body as a whole, cannot be used."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param)
        self.message, self.param = message, param

    def __str__(self) -> str:
        return self.message


class UnsupportedFieldError(InvalidRequestError):
    """The field is known and would change the answer, but it is not built yet."""

    def __init__(self, param: str) -> None:
        super().__init__(f"{param} is not supported yet; leave it out", param)
        self.args = (param,)  # what a copy is made from


class ModelNotFoundError(GatewayError):
    """The request names a model that is not served here."""

    param = "model"

    def __init__(self, asked: str, *served: str) -> None:
        super().__init__(asked, *served)
        self.asked, self.served = asked, served

    def __str__(self) -> str:
        names, verb = map(repr, self.served), "is" if len(self.served) == 1 else "are"
        return f"the model {self.asked!r} is not served here; {', '.join(names)} {verb}"


class ResponseNotFoundError(GatewayError):
    """The tenant has no such response, or has it no more."""

    def __init__(self, response_id: str) -> None:
        super().__init__(response_id)
        self.response_id = response_id

    def __str__(self) -> str:
        return f"there is no response {self.response_id[:_SHOWN_CHARACTERS]!r} of yours, or no more"


class PreviousResponseNotFoundError(ResponseNotFoundError):
    """The response that is to be gone on from is not kept; send the whole conversation instead."""

    param = "previous_response_id"


class CachedContentNotFoundError(GatewayError):
    """The tenant keeps no cached content of that name, or not any more."""

    param = "cachedContent"

    def __init__(self, asked: str) -> None:
        super().__init__(asked)
        self.asked = asked

    def __str__(self) -> str:
        shown = self.asked[:_SHOWN_CHARACTERS]
        return f"there is no cached content {shown!r}; it may have expired. Create it again."


class TooManyCachedContentsError(GatewayError):
    """The tenant keeps as many cached contents as it may."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.limit} cached contents are kept already; delete one or wait until it expires"


class ContextLengthError(GatewayError):
    """The prompt leaves no room for a single output token."""

    def __init__(self, found: int, max_model_tokens: int, param: str, unit: str = "tokens") -> None:
        super().__init__(found, max_model_tokens, param, unit)
        self.found, self.unit = found, unit  # characters: more than the tokens could ever hold
        self.max_model_tokens, self.param = max_model_tokens, param

    def __str__(self) -> str:
        return (
            f"the prompt has {self.found} {self.unit}; this model takes {self.max_model_tokens}"
            " tokens of prompt and output together. Shorten the prompt."
        )


class BodyTooLargeError(GatewayError):
    """The request's body is longer than the server reads."""

    def __init__(self, limit_bytes: int, declared_bytes: int | None = None) -> None:
        super().__init__(limit_bytes, declared_bytes)
        self.limit_bytes, self.declared_bytes = limit_bytes, declared_bytes

    def __str__(self) -> str:
        found = "more" if self.declared_bytes is None else f"{self.declared_bytes} bytes"
        return f"the body has {found}; this server reads at most {self.limit_bytes} bytes of one"


class BodyTimeoutError(GatewayError):
    """The request's body did not arrive in time."""


class HostRefusedError(GatewayError):
    """The Host header names no loopback host, and without keys only those are answered."""

    param = "Host"

    def __init__(self, found: str | None) -> None:
        super().__init__(found)
        self.found = found

    def __str__(self) -> str:
        found = "is missing" if self.found is None else f"is {self.found[:_SHOWN_CHARACTERS]!r}"
        return (
            f"the Host header {found}; with no API keys configured, requests must name"
            " localhost, 127.0.0.1 or [::1]"
        )


class OriginRefusedError(GatewayError):
    """A page from elsewhere asks for an admin route, which without keys is open to this machine."""

    param = "Origin"

    def __str__(self) -> str:
        return "with no API keys configured, admin routes are not for pages of other hosts"


class UnauthenticatedError(GatewayError):
    """The request has no credential, or one that nobody has. Never says which keys there are."""

    def __init__(self, is_missing: bool) -> None:
        super().__init__(is_missing)
        self.is_missing = is_missing

    @property
    def headers(self) -> Mapping[str, str]:
        """See `GatewayError`."""
        return {hdrs.WWW_AUTHENTICATE: "Bearer"}

    def __str__(self) -> str:
        if self.is_missing:
            return "an API key is needed: send it as Authorization: Bearer KEY"
        return "the API key is not known here"


class AccessRefusedError(GatewayError):
    """The credential is good, and not for this route."""

    def __init__(self, needs_admin: bool) -> None:
        super().__init__(needs_admin)
        self.needs_admin = needs_admin

    def __str__(self) -> str:
        needed, given = ("the admin's", "a tenant's") if self.needs_admin else _OTHER_WAY_ROUND
        return f"this route needs {needed} key; {given} was sent"


class ModelRefusedError(GatewayError):
    """The tenant may not ask this model."""

    param = "model"

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model

    def __str__(self) -> str:
        return f"the model {self.model!r} is not among those that this API key may ask"


class RateLimitedError(GatewayError):
    """The tenant has had what it may have a minute."""

    def __init__(self, what: str, per_minute: int, wait_seconds: float) -> None:
        super().__init__(what, per_minute, wait_seconds)
        self.what, self.per_minute, self.wait_seconds = what, per_minute, wait_seconds

    @property
    def headers(self) -> Mapping[str, str]:
        """See `GatewayError`."""
        return {
            hdrs.RETRY_AFTER: str(max(math.ceil(self.wait_seconds), 1)),
            "retry-after-ms": str(max(math.ceil(1000 * self.wait_seconds), 1)),
        }

    def __str__(self) -> str:
        return (
            f"this API key has {self.per_minute} {self.what} a minute, and they are used;"
            f" try again in {self.wait_seconds:.3g} seconds"
        )


class TenantBusyError(GatewayError):
    """As many of the tenant's requests as may run, or wait, at once do so."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what, limit)
        self.what, self.limit = what, limit

    def __str__(self) -> str:
        return f"this API key may have {self.limit} {self.what} at once; try again in a moment"


class QuotaError(GatewayError):
    """Root of refusals that waiting does not mend."""

    @property
    def headers(self) -> Mapping[str, str]:
        """See `GatewayError`."""
        return {"x-should-retry": "false"}


class MonthlyQuotaError(QuotaError):
    """The tenant has used its tokens of the month."""

    def __init__(self, tokens_per_month: int) -> None:
        super().__init__(tokens_per_month)
        self.tokens_per_month = tokens_per_month

    def __str__(self) -> str:
        return f"this API key has used its {self.tokens_per_month} tokens of the month"


class OverLimitError(QuotaError):
    """One request alone is over a limit of its tenant, so that it can never pass."""

    def __init__(self, found: int, limit: int, what: str) -> None:
        super().__init__(found, limit, what)
        self.found, self.limit, self.what = found, limit, what

    def __str__(self) -> str:
        return f"the request has {self.found} {self.what}; this API key may have {self.limit}"


LIMIT_ERRORS = (ModelRefusedError, RateLimitedError, TenantBusyError, QuotaError)  # of a tenant


class OverloadedError(GatewayError):
    """As many requests as may wait to be read and tokenized do wait."""

    def __init__(self, max_waiting: int) -> None:
        super().__init__(max_waiting)
        self.max_waiting = max_waiting

    def __str__(self) -> str:
        return f"{self.max_waiting} requests wait to be tokenized; try again in a moment"


class NotReadyError(GatewayError):
    """The model is being loaded, or the worker is being started again."""


class DrainingError(GatewayError):
    """The server is stopping and takes no new requests."""


class ChangeRefusedError(GatewayError):
    """The worker cannot load, unload or reload what it was asked to; all is as it was."""


class SlowClientError(GatewayError):
    """The client did not take what it was sent in time, so its connection is cut."""


class GenerationFailedError(GatewayError):
    """The engine ended a request; `kind` says how."""

    def __init__(self, kind: FailureKind, message: str, param: str | None = None) -> None:
        super().__init__(kind, message, param)
        self.kind, self.message, self.param = kind, message, param

    def __str__(self) -> str:
        return self.message


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


_SHOWN_CHARACTERS = 100  # of what a client sent
_ASKED_WRONG = "invalid_request_error"
_OUR_FAULT = "server_error"
_OTHER_WAY_ROUND = ("a tenant's", "the admin's")
_LIMITED = "rate_limit_error"
_INTERNAL = Verdict(500, _OUR_FAULT, "internal_error")
_OVERLOADED = Verdict(429, _LIMITED, "overloaded", retry_after_seconds=1)

_VERDICTS: Mapping[type[BaseException] | FailureKind, Verdict] = {
    InvalidRequestError: Verdict(400, _ASKED_WRONG, "invalid_value"),
    UnsupportedFieldError: Verdict(400, _ASKED_WRONG, "unsupported_parameter"),
    TemplateError: Verdict(400, _ASKED_WRONG, "invalid_messages", param="messages"),
    TextError: Verdict(400, _ASKED_WRONG, "invalid_value"),
    TokenIdError: Verdict(400, _ASKED_WRONG, "invalid_value"),
    ContextLengthError: Verdict(400, _ASKED_WRONG, "context_length_exceeded"),
    UnauthenticatedError: Verdict(401, _ASKED_WRONG, "invalid_api_key"),
    AccessRefusedError: Verdict(403, _ASKED_WRONG, "access_refused"),
    HostRefusedError: Verdict(403, _ASKED_WRONG, "host_refused"),
    OriginRefusedError: Verdict(403, _ASKED_WRONG, "origin_refused"),
    ModelRefusedError: Verdict(403, _ASKED_WRONG, "model_refused"),
    ChangeRefusedError: Verdict(400, _ASKED_WRONG, "change_refused"),
    ModelNotFoundError: Verdict(404, _ASKED_WRONG, "model_not_found"),
    ResponseNotFoundError: Verdict(404, _ASKED_WRONG, "response_not_found"),
    PreviousResponseNotFoundError: Verdict(400, _ASKED_WRONG, "previous_response_not_found"),
    CachedContentNotFoundError: Verdict(404, _ASKED_WRONG, "cached_content_not_found"),
    TooManyCachedContentsError: Verdict(429, "rate_limit_error", "too_many_cached_contents"),
    BodyTimeoutError: Verdict(408, _ASKED_WRONG, "body_timeout"),
    BodyTooLargeError: Verdict(413, _ASKED_WRONG, "body_too_large"),
    SlowClientError: Verdict(408, _ASKED_WRONG, "client_too_slow"),
    RateLimitedError: Verdict(429, _LIMITED, "rate_limit_exceeded"),
    TenantBusyError: Verdict(429, _LIMITED, "too_many_requests", retry_after_seconds=1),
    MonthlyQuotaError: Verdict(429, "insufficient_quota", "insufficient_quota"),
    OverLimitError: Verdict(429, _LIMITED, "request_over_limit"),
    OverloadedError: _OVERLOADED,
    NotReadyError: Verdict(503, _OUR_FAULT, "not_ready", retry_after_seconds=2),
    DrainingError: Verdict(503, _OUR_FAULT, "draining", retry_after_seconds=5),
    FailureKind.TOO_LARGE: Verdict(400, _ASKED_WRONG, "context_length_exceeded"),
    FailureKind.INVALID: Verdict(400, _ASKED_WRONG, "invalid_value"),
    FailureKind.GRAMMAR: Verdict(400, _ASKED_WRONG, "invalid_value"),
    FailureKind.OVERLOADED: _OVERLOADED,
    FailureKind.QUEUE_TIMEOUT: Verdict(503, _OUR_FAULT, "queue_timeout", retry_after_seconds=5),
    FailureKind.DEADLINE: Verdict(408, _ASKED_WRONG, "deadline_exceeded"),
    FailureKind.CANCELLED: Verdict(503, _OUR_FAULT, "cancelled", retry_after_seconds=5),
    FailureKind.WORKER_DIED: Verdict(503, _OUR_FAULT, "worker_died", retry_after_seconds=2),
    FailureKind.INTERNAL: _INTERNAL,
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
