"""What a tier reads is loaded while the rest is read, and only what was checked is used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from prefixcache.control import Invalidation, InvalidationKind
from prefixcache.errors import TierError
from prefixcache.kv import KVStore
from prefixcache.tiers import BlockRecord, WantedBlock
from prefixcache.types import RequestId, Span
from tests.support.models import Answer, Bench, oracle, prompt_ids
from tests.support.storm import Storm, poison
from tests.support.tiers import MemoryTier

PROMPT = prompt_ids(41)
N_BLOCKS = 10  # whole ones
_SECONDS = 20.0  # that nothing takes unless a test fails

Before = Callable[[int], None]  # is called before each block is read, with its number


class PacedTier(MemoryTier):
    """Is read block by block, and calls before each."""

    before: Before = staticmethod(lambda at: None)
    n_read = 0

    def read(self, wanted: Sequence[WantedBlock]) -> list[BlockRecord]:
        assert len(wanted) == 1
        self.before(self.n_read)
        self.n_read += 1
        return super().read(wanted)


@pytest.fixture(autouse=True)
def block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tiers asked for one block at a time, and requests be patient."""
    monkeypatch.setattr("prefixcache.engine.tiers.lane.BATCH_BYTES", 1)
    monkeypatch.setattr("prefixcache.engine.tiers.ahead._LEAST_WAIT_SECONDS", _SECONDS)
    monkeypatch.setattr("prefixcache.engine.tiers.ahead._MEETING_SECONDS", _SECONDS)
    monkeypatch.setattr("prefixcache.engine.tiers.ahead._LONGEST_MEETING_SECONDS", _SECONDS)


@pytest.fixture
def tier() -> PacedTier:
    """Has all whole blocks of the prompt."""
    tier = PacedTier()
    bench = Bench(lasting={"disk": tier}, tier_loading="always")
    bench.run(PROMPT)
    assert bench.engine.flush(_SECONDS)
    bench.engine.close()
    return tier


@pytest.fixture
def bench(tier: PacedTier) -> Iterator[Bench]:
    """A new engine over it, whose free memory is poisoned."""
    bench = Bench(lasting={"disk": tier}, tier_loading="always")
    poison(bench)
    yield bench
    tier.gate.set()
    bench.engine.close()


class Written:
    """Tells how many blocks a store was given, from any thread."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_blocks = 0
        self.fails_at: int | None = None
        self._changed = threading.Condition()
        copy_in = KVStore.copy_in

        def counted(store: KVStore, group: int, span: Span, data: torch.Tensor) -> None:
            if self.fails_at is not None and self.n_blocks >= self.fails_at:
                raise RuntimeError("it fails on purpose")
            copy_in(store, group, span, data)
            with self._changed:
                self.n_blocks += span.n_blocks
                self._changed.notify_all()

        monkeypatch.setattr(KVStore, "copy_in", counted)

    def reaches(self, n_blocks: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.n_blocks >= n_blocks, _SECONDS)


@pytest.fixture
def written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Written:
    return Written(bench, monkeypatch)


def checked(bench: Bench, answer: Answer) -> int:
    """Return the cached tokens of an answer to the prompt, which must be the right one."""
    assert oracle(bench.reference, PROMPT, 8).is_same(answer.token_ids)
    bench.engine.cache.check()
    assert bench.n_held == 0
    assert not bench.engine._tiers.ahead._by_key
    assert answer.cached_tokens is not None
    return answer.cached_tokens


def test_each_part_is_written_before_the_next_is_read(
    bench: Bench, tier: PacedTier, written: Written
) -> None:
    """A tier that reads on only when the store has the last block does not wait in vain."""
    in_time = []
    tier.before = lambda at: in_time.append(at < 1 or written.reaches(at))
    assert checked(bench, bench.run(PROMPT)) == 40
    assert in_time == [True] * N_BLOCKS
    assert bench.engine.stats().tiers["disk"].hit_tokens == 40


@pytest.mark.parametrize("n_good", range(1, N_BLOCKS))
def test_what_comes_short_is_computed(
    bench: Bench, tier: PacedTier, written: Written, n_good: int
) -> None:
    """After a record that is not the wanted one, or that the tier cannot read, nothing is used."""

    def spoiled(records: list[BlockRecord]) -> list[BlockRecord]:
        is_good = tier.n_read <= n_good
        return records if is_good else [replace(r, token_ids=bytes(16)) for r in records]

    tier.spoil = spoiled
    tier.before = lambda at: None if at < 1 or at > n_good else assert_that(written.reaches(at))
    assert checked(bench, bench.run(PROMPT)) == 4 * n_good
    assert written.n_blocks == n_good
    assert bench.engine.stats().tiers["disk"].refused_blocks == 1


def assert_that(is_so: bool) -> None:
    assert is_so


def test_a_tier_that_fails_midway_gives_what_it_gave(
    bench: Bench, tier: PacedTier, written: Written
) -> None:
    """It counts one failure and is left out."""

    def fail(at: int) -> None:
        if at == 3:
            assert written.reaches(3)
            raise TierError("it fails on purpose")

    tier.before = fail
    assert checked(bench, bench.run(PROMPT)) == 12
    stats = bench.engine.stats().tiers["disk"]
    assert (stats.failures, stats.is_out) == (1, True)


def test_a_tier_that_hangs_midway_is_left_behind(
    bench: Bench, tier: PacedTier, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came is used, and the rest computed, after a bounded time."""
    monkeypatch.setattr("prefixcache.engine.tiers.ahead._LONGEST_MEETING_SECONDS", 0.2)

    def hang(at: int) -> None:
        if at == 4:
            tier.gate.clear()

    tier.before = hang
    assert checked(bench, bench.run(PROMPT)) == 16
    assert written.n_blocks == 4
    assert bench.engine._tiers.ahead.late_reads == 1
    tier.gate.set()
    assert bench.run(PROMPT).cached_tokens == 40


def test_a_write_that_fails_leaves_no_trace(
    bench: Bench, tier: PacedTier, written: Written
) -> None:
    """Blocks that were written before are given back, and nothing of the prompt counts."""
    written.fails_at = 3
    tier.before = lambda at: assert_that(at > 3 or written.reaches(at))
    assert checked(bench, bench.run(PROMPT)) == 0
    assert bench.engine.stats().tiers["disk"].hit_tokens == 0


def test_the_next_tier_is_met_too(tier: PacedTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first has not is read from the second, and both are counted."""
    near = PacedTier()
    near.records = dict(list(tier.records.items())[:4])
    bench = Bench(lasting={"disk": near, "remote": tier}, tier_loading="always")
    poison(bench)
    written = Written(bench, monkeypatch)
    tier.before = lambda at: assert_that(at < 1 or written.reaches(4 + at))
    assert checked(bench, bench.run(PROMPT)) == 40
    hits = {name: stats.hit_tokens for name, stats in bench.engine.stats().tiers.items()}
    assert hits == {"disk": 16, "remote": 24}
    bench.engine.close()


def test_nobody_is_held_up_by_a_reading(bench: Bench, tier: PacedTier, written: Written) -> None:
    """While another request runs, one that is read for waits for the end of its reading."""

    def before(at: int) -> None:
        if at == 1:
            tier.gate.clear()

    tier.before = before
    bench.submit("runs", prompt_ids(9, seed=3), 60)
    bench.step_until(lambda: len(bench.answers["runs"].token_ids) > 1)
    bench.submit("waits", PROMPT, 8)
    bench.step_until(lambda: len(bench.answers["runs"].token_ids) > 20)
    assert written.n_blocks == 0
    tier.gate.set()
    bench.drain()
    assert checked(bench, bench.answers["waits"]) == 40


def test_who_joins_a_reading_finds_all_of_it(bench: Bench, tier: PacedTier) -> None:
    """One who could have met it and was not admitted shares it with who comes later."""
    tier.before = lambda at: tier.gate.clear() if at == 1 else None
    ahead = bench.engine._tiers.ahead
    bench.submit("first", PROMPT)
    (first,) = ahead._fetches
    while ahead.is_reading(first, is_idle=True):
        time.sleep(0.001)
    bench.submit("second", PROMPT)
    read = ahead._fetches[first].read
    assert read is not None
    tier.gate.set()
    while not read.is_done:
        time.sleep(0.001)
    assert not ahead.is_reading(first, is_idle=True)
    for sequence in list(ahead._fetches):
        fetch = ahead.take(sequence)
        assert fetch is not None
        assert sum(len(records) for _, records in ahead.coming(fetch)) == N_BLOCKS


def test_a_slow_tier_is_not_met(
    bench: Bench, tier: PacedTier, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the rest would take long, the engine does other things until it is there."""
    monkeypatch.setattr("prefixcache.engine.tiers.ahead._MEETING_SECONDS", 0.0)
    n_written = []
    tier.before = lambda at: n_written.append(written.n_blocks)
    assert checked(bench, bench.run(PROMPT)) == 40
    assert n_written == [0] * N_BLOCKS


def test_who_is_cancelled_before_it_is_met_leaves_nothing(bench: Bench, tier: PacedTier) -> None:
    """Its reading ends with the block that is under way."""
    tier.gate.clear()
    bench.submit("gone", PROMPT)
    bench.step()
    bench.engine.cancel(RequestId("gone"))
    tier.gate.set()
    bench.drain()
    assert not bench.engine._tiers.ahead._by_key
    assert bench.n_held == 0
    assert checked(bench, bench.run(PROMPT)) == 40


def test_an_invalidation_wins_over_a_reading(
    bench: Bench, tier: PacedTier, written: Written
) -> None:
    """What was read before it is not loaded, nor is what was loaded before it found."""
    gone = Invalidation(kind=InvalidationKind.EVERYTHING)
    tier.gate.clear()
    bench.submit("first", PROMPT)
    bench.step()
    bench.engine.control.invalidate(gone)
    tier.gate.set()
    bench.drain()
    assert checked(bench, bench.answers["first"]) == 0
    assert written.n_blocks == 0
    assert bench.engine.flush(_SECONDS)
    assert bench.run(PROMPT).cached_tokens == 40
    bench.engine.control.invalidate(gone)
    assert bench.run(PROMPT).cached_tokens == 0


def test_memory_of_what_was_written_is_let_go(
    bench: Bench, tier: PacedTier, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long reading a few parts are there at a time, so that each need not be new memory."""
    kept: list[int] = []
    ahead = bench.engine._tiers.ahead
    coming: Any = ahead.coming

    def watched(fetch: Any) -> Iterator[Any]:
        for found in coming(fetch):
            yield found
            kept.append(len(fetch.found))

    monkeypatch.setattr(ahead, "coming", watched)
    tier.before = lambda at: assert_that(at < 1 or written.reaches(at))
    assert checked(bench, bench.run(PROMPT)) == 40
    assert kept == [0] * N_BLOCKS


@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_events_uses_what_was_not_checked(seed: int) -> None:
    """Storms on a small pool over two tiers that are read block by block change no answer."""
    tiers = {"disk": MemoryTier(), "remote": MemoryTier(knows=False)}
    for _ in range(2):  # the second one finds what the first one has left
        for number, key in enumerate(list(tiers["disk"].records)):
            if number % 3 == 0:
                del tiers["disk"].records[key]
        storm = Storm(
            900 + 10 * seed,
            prefix_cache=True,
            host_memory_bytes=40_000 * (seed % 2),
            tier_loading="always",
            n_tokens=100,
            lasting=dict(tiers),
        )
        storm.run(25)
        storm.check_end()
        storm.engine.close()
