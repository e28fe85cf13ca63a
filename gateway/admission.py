"""One request's passage: what its tenant may still have is asked before, and charged after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from gateway.errors import (
    ModelRefusedError,
    MonthlyQuotaError,
    OverLimitError,
    RateLimitedError,
    TenantBusyError,
)
from gateway.ledger import Ledger
from gateway.limits import TokenBucket
from gateway.tenants import Tenant
from prefixcache.index import TOKEN_BYTES
from prefixcache.types import GenerationRequest, Usage

ASSUMED_OUTPUT_TOKENS = 256  # of an answer that may be longer, until it has ended
_LAST_PRIORITY = 2**31 - 1
_NOTHING = Usage(0, 0, 0)


class Outcome(StrEnum):
    """How a request ended, as accounts and metrics have it."""

    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"  # the client left first
    REFUSED = "refused"  # for what its tenant may have


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a rate now."""

    limit: int
    remaining: int
    reset_seconds: float  # until all of it is there


class Meter:
    """What one tenant uses now. Used from one event loop."""

    def __init__(
        self, tenant: Tenant, clock: Callable[[], float], month_tokens: Callable[[], int]
    ) -> None:
        self.tenant = tenant
        self.month_tokens = month_tokens
        self._clock = clock
        self._open: set[Admission] = set()
        self.requests = _bucket(tenant.limits.requests_per_minute, clock)
        self.tokens = _bucket(tenant.limits.tokens_per_minute, clock)

    @property
    def n_open(self) -> int:
        """How many requests are between their admission and their end."""
        return len(self._open)

    @property
    def n_waiting(self) -> int:
        """How many answers are to be begun."""
        return sum(admission.n_waiting for admission in self._open)

    def use(self, tenant: Tenant) -> None:
        """Hold the tenant to other limits from now on; what was used stays used."""
        limits = tenant.limits
        self.requests = _resized(self.requests, limits.requests_per_minute, self._clock)
        self.tokens = _resized(self.tokens, limits.tokens_per_minute, self._clock)
        self.tenant = tenant

    def admit(self) -> Admission:
        """Let a request pass, as one of this minute. The caller leaves the admission.

        Raises:
            MonthlyQuotaError, RateLimitedError, TenantBusyError: not now. Nothing was charged.
        """
        limits = self.tenant.limits
        if 0 < limits.tokens_per_month <= self.month_tokens():
            raise MonthlyQuotaError(limits.tokens_per_month)
        if 0 < limits.max_concurrent_requests <= self.n_open:
            raise TenantBusyError("requests running", limits.max_concurrent_requests)
        if 0 < limits.max_queued <= self.n_waiting:
            raise TenantBusyError("answers waiting", limits.max_queued)
        _require("tokens", self.tokens, 1)
        _require("requests", self.requests, 1)
        if self.requests is not None:
            self.requests.charge(1)
        admission = Admission(self)
        self._open.add(admission)
        return admission

    def rates(self) -> Mapping[str, Left]:
        """Return what is left of the tenant's rates, those that it has."""
        buckets = {"requests": self.requests, "tokens": self.tokens}
        return {
            what: Left(bucket.per_minute, bucket.remaining, bucket.seconds_until(bucket.per_minute))
            for what, bucket in buckets.items()
            if bucket is not None
        }

    def leave(self, admission: Admission) -> None:
        """Forget a request that is over. Asked again, it changes nothing."""
        self._open.discard(admission)


class Admission:
    """One request that was let pass, until it is over."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._reserved_tokens = 0
        self._ledger: Ledger | None = None
        self.model = ""  # that it came to

    @property
    def n_waiting(self) -> int:
        """How many of its answers are to be begun; before it is read, one."""
        return 1 if self._ledger is None else self._ledger.n_waiting

    def reserve(
        self, model: str, requests: tuple[GenerationRequest, ...], ledger: Ledger
    ) -> tuple[GenerationRequest, ...]:
        """Hold back tokens for what the engine is to be asked; return it as the tenant may ask.

        A prompt counts once however many choices it has; an answer as ASSUMED_OUTPUT_TOKENS where
        it may be longer. The difference to what was used is charged when the request is over.

        Raises:
            ModelRefusedError: the tenant may not ask this model.
            TenantBusyError, OverLimitError: that would be too many answers waiting.
            RateLimitedError, OverLimitError: that would be too many tokens.
        """
        meter, tenant = self._meter, self._meter.tenant
        if not tenant.may_use_model(model):
            raise ModelRefusedError(model)
        self.model = model
        fitting = tuple(fitted(request, tenant) for request in requests)
        self._require_places(ledger.n_waiting)
        if meter.tokens is not None:
            self._reserve_tokens(meter.tokens, *_expected_tokens(fitting))
        self._ledger = ledger
        return fitting

    def leave(self, usage: Usage = _NOTHING) -> None:
        """End it: charge what it used for what was reserved."""
        if self._meter.tokens is not None:
            used = usage.prompt_tokens + usage.output_tokens
            self._meter.tokens.charge(used - self._reserved_tokens)
        self._reserved_tokens = 0
        self._meter.leave(self)

    def _require_places(self, n_answers: int) -> None:
        limit = self._meter.tenant.limits.max_queued
        if 0 < limit < n_answers:
            raise OverLimitError(n_answers, limit, "answers")
        if 0 < limit < self._meter.n_waiting - self.n_waiting + n_answers:
            raise TenantBusyError("answers waiting", limit)

    def _reserve_tokens(self, bucket: TokenBucket, prompt: int, output: int) -> None:
        if prompt > bucket.per_minute:
            raise OverLimitError(prompt, bucket.per_minute, "tokens of prompt")
        expected = min(prompt + output, bucket.per_minute)
        _require("tokens", bucket, expected)
        bucket.charge(expected)
        self._reserved_tokens = expected


def fitted(request: GenerationRequest, tenant: Tenant) -> GenerationRequest:
    """Return `request` no longer and no more urgent than `tenant` may have it."""
    longest, sampling = tenant.limits.max_output_tokens, request.sampling
    if 0 < longest < sampling.max_tokens:
        min_tokens = min(sampling.min_tokens, longest)
        sampling = replace(sampling, max_tokens=longest, min_tokens=min_tokens)
    priority = request.priority
    if not tenant.is_alone:
        priority = min(tenant.limits.priority + max(priority, 0), _LAST_PRIORITY)
    return replace(request, sampling=sampling, priority=priority)


def _expected_tokens(requests: tuple[GenerationRequest, ...]) -> tuple[int, int]:
    """Return the tokens of the prompts, each once, and those that their answers may have."""
    first_choices = (request for request in requests if request.sampling.choice == 0)
    prompt = sum(len(request.token_ids) // TOKEN_BYTES for request in first_choices)
    output = sum(min(each.sampling.max_tokens, ASSUMED_OUTPUT_TOKENS) for each in requests)
    return prompt, output


def _require(what: str, bucket: TokenBucket | None, amount: int) -> None:
    if bucket is not None and (wait_seconds := bucket.seconds_until(amount)) > 0:
        raise RateLimitedError(what, bucket.per_minute, wait_seconds)


def _bucket(per_minute: int, clock: Callable[[], float]) -> TokenBucket | None:
    return TokenBucket(per_minute, clock) if per_minute else None


def _resized(
    bucket: TokenBucket | None, per_minute: int, clock: Callable[[], float]
) -> TokenBucket | None:
    if bucket is None or not per_minute:
        return _bucket(per_minute, clock)
    bucket.resize(per_minute)
    return bucket
