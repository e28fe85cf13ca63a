"""The gateway's errors; `gateway.verdicts` has how each is answered."""

from __future__ import annotations

import math
from collections.abc import Mapping

from aiohttp import hdrs

from prefixcache.types import FailureKind

_SHOWN_CHARACTERS = 100  # of what a client sent
_OTHER_WAY_ROUND = ("a tenant's", "the admin's")


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


class PromptNotFoundError(GatewayError):
    """No such prompt is published, or not to this tenant; which of the two is not told."""

    param = "prompt"

    def __init__(self, name: str, version: int | None = None) -> None:
        super().__init__(name, version)
        self.name, self.version = name, version

    def __str__(self) -> str:
        version = "" if self.version is None else f" with a version {self.version}"
        return f"there is no published prompt {self.name[:_SHOWN_CHARACTERS]!r}{version}"


class RetiredVersionError(GatewayError):
    """The version of a published prompt is retired; another may be current."""

    param = "prompt"

    def __init__(self, name: str, version: int, current: int | None) -> None:
        super().__init__(name, version, current)
        self.name, self.version, self.current = name, version, current

    def __str__(self) -> str:
        current = "none is" if self.current is None else f"version {self.current} is"
        return f"version {self.version} of the prompt {self.name!r} is retired; {current} current"


class PromptConflictError(GatewayError):
    """A version is to be published that is not above the last one of its name."""

    param = "version"

    def __init__(self, name: str, version: int, last: int) -> None:
        super().__init__(name, version, last)
        self.name, self.version, self.last = name, version, last

    def __str__(self) -> str:
        return (
            f"version {self.version} of {self.name!r} cannot be published: {self.last} was, and"
            " versions only go up. Take a higher one, or leave it out."
        )


class UnknownTenantError(GatewayError):
    """No tenant of that name is configured, and nothing is cached for one."""

    param = "name"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        shown = self.name[:_SHOWN_CHARACTERS]
        return f"no tenant {shown!r} is configured, and nothing is cached for one"


class NotSupportedError(GatewayError):
    """The backend that serves here cannot do this at all; nothing was done."""


class SlowClientError(GatewayError):
    """The client did not take what it was sent in time, so its connection is cut."""


class GenerationFailedError(GatewayError):
    """The engine ended a request; `kind` says how."""

    def __init__(self, kind: FailureKind, message: str, param: str | None = None) -> None:
        super().__init__(kind, message, param)
        self.kind, self.message, self.param = kind, message, param

    def __str__(self) -> str:
        return self.message
