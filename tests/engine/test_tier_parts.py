"""When a tier is left out and tried again, and whether loading from it is worth it."""

from __future__ import annotations

import time

import pytest

from gateway.backends import local
from prefixcache.engine.budget import StepBudget
from prefixcache.engine.tiers.breaker import (
    FIRST_PAUSE_SECONDS,
    HANG_SECONDS,
    LONGEST_PAUSE_SECONDS,
    Breaker,
)
from prefixcache.engine.tiers.closing import CLOSE_SECONDS, close_lanes
from prefixcache.engine.tiers.lane import TierLane
from prefixcache.engine.tiers.speeds import FRESH_SECONDS, TransferSpeed, Worth
from prefixcache.tiers import BlockRecord, StoredNamespace, StoredScope
from tests.support.tiers import MemoryTier


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_pauses_double_up_to_a_limit_and_one_success_ends_them() -> None:
    """A tier that fails again and again is asked less and less often."""
    clock = Clock()
    breaker = Breaker("disk", clock)
    pauses = []
    for _ in range(9):
        breaker.begin()
        breaker.fail(OSError("gone"))
        pauses.append(breaker.seconds_out)
        clock.now += breaker.seconds_out
        assert not breaker.is_out
    assert pauses[:3] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    breaker.begin()
    breaker.succeed()
    breaker.fail(OSError("gone"))
    assert breaker.seconds_out == FIRST_PAUSE_SECONDS


def test_a_call_that_does_not_end_leaves_the_tier_out() -> None:
    """While it lasts, and for a pause after it."""
    clock = Clock()
    breaker = Breaker("disk", clock)
    breaker.begin()
    clock.now += HANG_SECONDS + 1
    assert breaker.is_out
    breaker.succeed()
    assert breaker.is_out
    clock.now += FIRST_PAUSE_SECONDS
    assert not breaker.is_out


def worth(setting: str, a_second: float | None) -> Worth:
    budget = StepBudget(step_seconds=0.5, max_tokens=2048, first_tokens=128)
    budget.tokens_per_second = a_second
    return Worth(setting, budget, bytes_per_token=1000)  # type: ignore[arg-type]


def test_what_is_slower_than_computing_is_left_where_it_is() -> None:
    """By what both were measured to take; a minute later it is tried again."""
    clock = Clock()
    speed = TransferSpeed(clock)
    speed.record(1_000_000, 1.0)  # a thousand tokens a second
    assert worth("auto", 100).is_worth(speed, 500)
    assert not worth("auto", 10_000).is_worth(speed, 500)
    assert worth("always", 10_000).is_worth(speed, 500)
    assert not worth("never", 100).is_worth(speed, 500)
    clock.now += FRESH_SECONDS + 1
    assert worth("auto", 10_000).is_worth(speed, 500)


def test_what_was_never_measured_is_tried() -> None:
    """Neither a tier nor a machine is judged by a guess."""
    clock = Clock()
    speed = TransferSpeed(clock)
    assert worth("auto", 10_000).is_worth(speed, 500)
    speed.record(1_000_000, 1.0)
    assert worth("auto", None).is_worth(speed, 500)


def test_a_latency_counts_once() -> None:
    """A long transfer is not as many short ones."""
    speed = TransferSpeed(Clock())
    speed.record(1000, 0.5)
    speed.record(1_000_000, 1.5)
    assert speed.seconds_for(1000) == pytest.approx(0.5)
    assert speed.seconds_for(2_000_000) == pytest.approx(2.5)


def test_an_invalidation_that_fails_is_made_before_anything_is_read() -> None:
    """A tier that does not know of it yet gives nothing back."""
    clock, tier = Clock(), MemoryTier()
    lane = TierLane("disk", tier, [(1, False)], clock=clock)
    tier.is_broken = True
    lane.invalidate(StoredScope(tenant=bytes(16)))
    lane.flush(0.3)
    assert lane.breaker.is_out
    assert lane.read([]) is None
    clock.now += FIRST_PAUSE_SECONDS
    assert lane.likely_length([b"key"]) == 0
    tier.is_broken = False
    assert lane.flush(5)
    assert tier.scopes == [StoredScope(tenant=bytes(16))]
    close_lanes([lane], 1)


def record(tenant: bytes, n_bytes: int) -> BlockRecord:
    """Return a record of one tenant's, named by it."""
    owner = StoredNamespace(model=b"m" * 16, adapter=None, tenant=tenant * 16, salt=None)
    return BlockRecord(tenant * 16, owner.root_key(), owner, b"ids.", (bytes(n_bytes),))


def test_an_invalidation_forgets_no_bytes_that_are_being_written() -> None:
    """What waits is counted until it is written, whatever is dropped meanwhile."""
    tier = MemoryTier()
    lane = TierLane("disk", tier, [(100, False)])
    tier.gate.clear()
    lane.write([record(b"a", 100)])
    for _ in range(10_000):
        if not lane._writes:  # the thread has it
            break
        time.sleep(0.001)
    lane.write([record(b"b", 30)])
    lane.write([record(b"c", 7)])
    lane.invalidate(StoredScope(tenant=b"b" * 16))
    assert lane.waiting_bytes == 107
    tier.gate.set()
    assert lane.flush(10)
    assert lane.waiting_bytes == 0
    assert set(tier.records) == {b"a" * 16, b"c" * 16}
    close_lanes([lane], 1)


def test_a_look_that_fails_during_a_call_counts_once() -> None:
    """The call that was under way has not hung because of it."""
    clock = Clock()
    clock.now = 1000.0
    breaker = Breaker("disk", clock)
    breaker.begin()
    breaker.fail(OSError("a look of another thread"))
    breaker.succeed()
    assert breaker.failures == 1


SPACE = StoredNamespace(model=bytes(16), adapter=None, tenant=bytes(16), salt=None)


def numbered(number: int, n_bytes: int = 100) -> BlockRecord:
    return BlockRecord(bytes([number]) * 16, bytes(16), SPACE, bytes(16), (bytes(n_bytes),))


class Slow(TierLane):
    """A lane whose waits take all of their time, by a clock of the test's own."""

    now: Clock

    def drain(self, seconds: float) -> None:
        self.now.now += seconds

    def join(self, seconds: float) -> None:
        self.now.now += seconds
        super().join(5)


def test_all_tiers_close_in_one_time() -> None:
    """However many there are and however slow; the gateway's patience is longer than that."""
    clock = Clock()
    lanes = [Slow(name, MemoryTier(), [(100, False)]) for name in ("disk", "remote", "more")]
    for lane in lanes:
        lane.now = clock
    close_lanes(lanes, CLOSE_SECONDS, clock)
    assert clock.now == pytest.approx(CLOSE_SECONDS)
    assert CLOSE_SECONDS < local._GRACE_SECONDS


def test_what_waits_is_written_before_a_tier_closes() -> None:
    """All of it, where there is time."""
    tier = MemoryTier()
    lane = TierLane("disk", tier, [(100, False)])
    for number in range(9):
        lane.write([numbered(number)])
    close_lanes([lane], 60)
    assert len(tier.records) == 9
    assert tier.is_closed
    assert (lane.counters.written_bytes, lane.counters.dropped_bytes) == (900, 0)


def test_what_was_not_written_in_time_is_dropped_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of each tier that hangs, the call under way too, once; another one has all of its own."""
    tiers = [MemoryTier(), MemoryTier(), MemoryTier()]
    lanes = [TierLane(name, tier, []) for name, tier in zip("abc", tiers, strict=True)]
    for tier in tiers[:2]:
        tier.gate.clear()
    for lane in lanes:
        for number in range(3):
            lane.write([numbered(number)])
    close_lanes(lanes, 0.4)
    assert [lane.counters.dropped_bytes for lane in lanes] == [300, 300, 0]
    assert [lane.waiting_bytes for lane in lanes] == [0, 0, 0]
    assert [record.getMessage() for record in caplog.records] == [
        f"the {name} tier was closed with 300 bytes unwritten" for name in "ab"
    ]
    for tier in tiers:
        tier.gate.set()
    for lane in lanes:
        lane.join(10)
        assert (lane.counters.dropped_bytes + lane.counters.written_bytes) == 300
    assert all(tier.is_closed for tier in tiers)


def test_an_invalidation_that_failed_is_tried_again_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A tier that was left out may work by then; where it does not, the log says what follows."""
    for is_broken in (False, True):
        tier = MemoryTier()
        tier.is_broken = True
        lane = TierLane("disk", tier, [])
        lane.invalidate(StoredScope())
        lane.flush(0.3)
        assert lane.breaker.is_out
        tier.is_broken = is_broken
        close_lanes([lane], 5)
        assert tier.scopes == ([] if is_broken else [StoredScope()])
    assert sum("may find" in record.getMessage() for record in caplog.records) == 1
