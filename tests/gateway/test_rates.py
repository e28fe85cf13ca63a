"""Rates, and what one tenant may have at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import ASSUMED_OUTPUT_TOKENS, Meter, fitted
from gateway.errors import (
    ModelRefusedError,
    MonthlyQuotaError,
    OverLimitError,
    RateLimitedError,
    TenantBusyError,
)
from gateway.ledger import Ledger
from gateway.limits import TokenBucket, duration_text
from gateway.rate_headers import anthropic_headers, openai_headers
from gateway.tenants import Tenant, TenantLimits
from prefixcache.index import pack
from prefixcache.types import (
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    GenerationRequest,
    RequestId,
    SamplingParams,
    Started,
    Usage,
)
from tests.support.tenancy import NOON, HandClock


def asked(n_prompt: int = 10, max_tokens: int = 5, **fields: Any) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=max_tokens, choice=fields.pop("choice", 0))
    ids = pack(range(n_prompt))
    return GenerationRequest(request_id=RequestId("r"), token_ids=ids, sampling=sampling, **fields)


def meter(clock: HandClock, month_tokens: int = 0, **limits: Any) -> Meter:
    tenant = Tenant(name="acme", limits=TenantLimits(**limits))
    return Meter(tenant, clock, lambda: month_tokens)


def test_a_bucket_refills_evenly() -> None:
    """A minute's worth passes at once; then as time brings it, to the very moment."""
    clock = HandClock(100)
    bucket = TokenBucket(60, clock)
    assert bucket.remaining == 60
    bucket.charge(60)
    assert (bucket.remaining, bucket.seconds_until(1), bucket.seconds_until(60)) == (0, 1, 60)
    clock.now += 1
    assert (bucket.remaining, bucket.seconds_until(1)) == (1, 0)
    clock.now += 3600
    assert bucket.remaining == 60


def test_a_debt_is_paid_before_anything_passes() -> None:
    """What was charged beyond what was there is waited for; what is put back never overflows."""
    clock = HandClock()
    bucket = TokenBucket(60, clock)
    bucket.charge(90)
    assert (bucket.remaining, bucket.seconds_until(1)) == (0, 31)
    bucket.charge(-500)
    assert bucket.remaining == 60
    bucket.charge(0)
    assert bucket.seconds_until(1000) == 0, "more than it holds passes when it is full"


def test_a_bucket_of_another_size_keeps_what_was_used() -> None:
    """A raised limit gives the difference at once, a lowered one takes it."""
    clock = HandClock()
    bucket = TokenBucket(60, clock)
    bucket.charge(50)
    bucket.resize(100)
    assert (bucket.remaining, bucket.per_minute) == (50, 100)
    bucket.resize(20)
    assert (bucket.remaining, bucket.seconds_until(1)) == (0, 93)


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50)), max_size=50),
)
def test_no_more_passes_than_the_rate(per_minute: int, steps: list[tuple[float, int]]) -> None:
    """In any stretch of time at most one minute's worth and what the time brings passes."""
    clock = HandClock()
    bucket = TokenBucket(per_minute, clock)
    passed = 0
    for pause, amount in steps:
        clock.now += pause
        if amount <= per_minute and bucket.seconds_until(amount) == 0:
            bucket.charge(amount)
            passed += amount
        assert passed <= per_minute * (1 + clock.now / 60) + 1e-3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "1ms"),
        (0.012, "12ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3723, "1h2m3s"),
    ],
)
def test_durations_are_told_as_openai_does(seconds: float, text: str) -> None:
    """Milliseconds alone below a second; hours, minutes and seconds above, rounded up."""
    assert duration_text(seconds) == text


def test_headers_of_both_dialects() -> None:
    """The same numbers, with resets as durations here and as moments of UTC there."""
    clock = HandClock()
    full = meter(clock, requests_per_minute=60, tokens_per_minute=6000)
    full.admit()
    rates = full.rates()
    assert dict(openai_headers(rates)) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "6000",
        "x-ratelimit-reset-tokens": "0s",
    }
    told = dict(anthropic_headers(rates, NOON))
    assert told["anthropic-ratelimit-requests-remaining"] == "59"
    assert told["anthropic-ratelimit-requests-reset"] == "2026-11-30T12:00:01Z"
    assert len(told) == 6
    assert meter(clock).rates() == {}


def test_requests_are_limited_by_the_minute() -> None:
    """The one too many is told when to come back, and is not counted; then it passes."""
    clock = HandClock()
    limited = meter(clock, requests_per_minute=2)
    for _ in range(2):
        limited.admit()
    for _ in range(3):
        with pytest.raises(RateLimitedError) as caught:
            limited.admit()
        assert caught.value.wait_seconds == 30
    clock.now += 30
    limited.admit()


def test_running_requests_are_limited() -> None:
    """As many as may run do; when one is over the next passes. Leaving twice counts once."""
    limited = meter(HandClock(), max_concurrent_requests=2)
    first, _ = limited.admit(), limited.admit()
    with pytest.raises(TenantBusyError, match="2 requests running"):
        limited.admit()
    first.leave()
    first.leave()
    limited.admit()
    with pytest.raises(TenantBusyError):
        limited.admit()


def test_waiting_answers_are_limited() -> None:
    """An answer waits from the request's admission until it is begun or has failed."""
    limited = meter(HandClock(), max_queued=3)
    first = limited.admit()
    ledger = Ledger(n_requests=3, choices_per_prompt=1)
    first.reserve("m", (asked(),) * 3, ledger)
    assert limited.n_waiting == 3
    with pytest.raises(TenantBusyError, match="3 answers waiting"):
        limited.admit()
    ledger.observe(0, Started(RequestId("r"), 10, 0))
    ledger.observe(1, Failed(RequestId("r"), FailureKind.INTERNAL, "why"))
    assert limited.n_waiting == 1
    second = limited.admit()
    with pytest.raises(TenantBusyError):
        second.reserve("m", (asked(),) * 3, Ledger(n_requests=3, choices_per_prompt=1))
    second.reserve("m", (asked(),) * 2, Ledger(n_requests=2, choices_per_prompt=1))
    with pytest.raises(OverLimitError, match="4 answers"):
        second.reserve("m", (asked(),) * 4, Ledger(n_requests=4, choices_per_prompt=1))


def test_tokens_are_reserved_and_settled() -> None:
    """A prompt and its answers are held back at first, what was used is charged in the end."""
    limited = meter(HandClock(), tokens_per_minute=1000)
    admission = limited.admit()
    requests = tuple(asked(100, 20, choice=choice) for choice in range(3))
    ledger = Ledger(n_requests=3, choices_per_prompt=3)
    admission.reserve("m", requests, ledger)
    assert limited.rates()["tokens"].remaining == 1000 - 100 - 3 * 20
    for index in range(3):
        usage = Usage(100, 50, 7)
        ledger.observe(index, Finished(RequestId("r"), FinishReason.STOP, usage))
    admission.leave(ledger.usage())
    assert limited.rates()["tokens"].remaining == 1000 - 100 - 3 * 7


def test_a_request_that_fails_gives_its_tokens_back() -> None:
    """What never came to the engine costs a request and no tokens."""
    limited = meter(HandClock(), tokens_per_minute=1000, requests_per_minute=10)
    admission = limited.admit()
    admission.reserve("m", (asked(100, 20),), Ledger(n_requests=1, choices_per_prompt=1))
    admission.leave()
    rates = limited.rates()
    assert (rates["tokens"].remaining, rates["requests"].remaining) == (1000, 9)


def test_an_answer_of_any_length_is_reserved_in_part() -> None:
    """A long limit holds back what answers mostly have; the rest is charged, and may be a debt."""
    clock = HandClock()
    limited = meter(clock, tokens_per_minute=600)
    admission, ledger = limited.admit(), Ledger(n_requests=1, choices_per_prompt=1)
    admission.reserve("m", (asked(100, 100_000),), ledger)
    assert limited.rates()["tokens"].remaining == 600 - 100 - ASSUMED_OUTPUT_TOKENS
    ledger.observe(0, Finished(RequestId("r"), FinishReason.STOP, Usage(100, 0, 1100)))
    admission.leave(ledger.usage())
    with pytest.raises(RateLimitedError, match="600 tokens a minute"):
        limited.admit()
    clock.now += 60.2  # 600 of debt, and a token
    limited.admit()


def test_a_prompt_over_the_limit_can_never_pass() -> None:
    """It is refused for good; one that fits, whose answer might not, waits for a full bucket."""
    limited = meter(HandClock(), tokens_per_minute=100)
    ledger = Ledger(n_requests=1, choices_per_prompt=1)
    with pytest.raises(OverLimitError, match=r"101 tokens of prompt; .* 100"):
        limited.admit().reserve("m", (asked(101, 5),), ledger)
    limited.admit().reserve("m", (asked(99, 50),), ledger)
    assert limited.rates()["tokens"].remaining == 0


def test_the_month_has_an_end() -> None:
    """At the quota nothing passes any more, and waiting is said not to help."""
    meter(HandClock(), 999, tokens_per_month=1000).admit()
    with pytest.raises(MonthlyQuotaError) as caught:
        meter(HandClock(), 1000, tokens_per_month=1000).admit()
    assert caught.value.headers == {"x-should-retry": "false"}


def test_other_models_are_refused() -> None:
    """A tenant with a list asks what is on it."""
    limited = meter(HandClock(), models=("formal",))
    ledger = Ledger(n_requests=1, choices_per_prompt=1)
    limited.admit().reserve("formal", (asked(),), ledger)
    with pytest.raises(ModelRefusedError, match="'tiny'"):
        limited.admit().reserve("tiny", (asked(),), ledger)


def test_published_prompts_can_be_limited() -> None:
    """A tenant with a list uses what is on it, one without any."""
    listed = Tenant(name="acme", limits=TenantLimits(prompts=("greeting",)))
    assert listed.may_use_prompt("greeting")
    assert not listed.may_use_prompt("other")
    assert Tenant(name="beta").may_use_prompt("other")


@pytest.mark.parametrize(
    ("own", "asked_for", "given"),
    [(0, 0, 0), (0, -5, 0), (0, 7, 7), (10, 0, 10), (10, 5, 15), (-3, 0, -3), (-3, -9, -3)],
)
def test_a_request_can_only_be_less_urgent(own: int, asked_for: int, given: int) -> None:
    """Its own priority counts from its tenant's, and only upwards."""
    tenant = Tenant(name="acme", limits=TenantLimits(priority=own))
    assert fitted(asked(priority=asked_for), tenant).priority == given
    assert fitted(asked(priority=2**31 - 1), tenant).priority <= 2**31 - 1


def test_alone_any_priority_is_kept() -> None:
    """Where there is one tenant, its requests order themselves."""
    assert fitted(asked(priority=-5), Tenant(name="default", is_alone=True)).priority == -5


def test_answers_are_cut_to_the_tenants_longest() -> None:
    """max_tokens and min_tokens come down to it; shorter ones stay, and nothing else changes."""
    tenant = Tenant(name="acme", limits=TenantLimits(max_output_tokens=8))
    sampling = SamplingParams(max_tokens=100, min_tokens=50, seed=3)
    long = msgspec.structs.replace(asked(), sampling=sampling)
    cut = fitted(long, tenant).sampling
    assert cut == msgspec.structs.replace(sampling, max_tokens=8, min_tokens=8)
    assert fitted(asked(max_tokens=3), tenant).sampling.max_tokens == 3
    assert fitted(long, replace(tenant, limits=TenantLimits())).sampling == sampling


def test_other_limits_count_what_was_used() -> None:
    """After a change the minute's use stays; limits that are gone are gone."""
    clock = HandClock()
    limited = meter(clock, requests_per_minute=2)
    running = limited.admit()
    limited.admit().leave()
    limited.use(Tenant(name="acme", limits=TenantLimits(requests_per_minute=3)))
    limited.admit()
    with pytest.raises(RateLimitedError):
        limited.admit()
    limited.use(Tenant(name="acme", limits=TenantLimits(max_concurrent_requests=2)))
    with pytest.raises(TenantBusyError):
        limited.admit()
    running.leave()
    limited.admit()
