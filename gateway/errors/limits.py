"""Requests that are over a limit: a tenant's, or the server's."""

from __future__ import annotations

import math
from collections.abc import Mapping

from aiohttp import hdrs

from gateway.errors.access import ModelRefusedError
from gateway.errors.base import GatewayError


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


class OverloadedError(GatewayError):
    """As many requests as may wait to be read and tokenized do wait."""

    def __init__(self, max_waiting: int) -> None:
        super().__init__(max_waiting)
        self.max_waiting = max_waiting

    def __str__(self) -> str:
        return f"{self.max_waiting} requests wait to be tokenized; try again in a moment"


LIMIT_ERRORS = (ModelRefusedError, RateLimitedError, TenantBusyError, QuotaError)  # of a tenant
