"""Hits at all capacities from one pass: exact, and estimated."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixcache.errors import ConfigError
from prefixcache.index.policies import LruPolicy
from prefixcache.traces import (
    MissRatioCurve,
    TraceRequest,
    infinite_cache,
    miss_ratio_curve,
    sampled_miss_ratio_curve,
    simulate,
)
from prefixcache.traces.recency import RecencyOrder
from tests.traces.plain import Ids, prefixes, prompts, trace
from tests.traces.public import needs_traces, public_trace

input_tokens = st.integers(-3, 0)  # what the last block of four lacks


@settings(deadline=None)
@given(prompts, st.lists(input_tokens, min_size=12, max_size=12))
def test_every_capacity_is_as_simulated(rows: list[Ids], lacking: list[int]) -> None:
    """Blocks, tokens and attention, at each capacity up to more than there is, and without one."""
    requests = [
        TraceRequest(float(n), max(4 * len(ids) + lack, 0), 1, ids, 4)
        for n, (ids, lack) in enumerate(zip(rows, lacking, strict=False))
    ]
    curve = miss_ratio_curve(iter(requests))
    for capacity_blocks in (*range(1, 20), None):
        expected = simulate(requests, policy=LruPolicy, capacity_blocks=capacity_blocks)
        assert curve.at(capacity_blocks) == expected
        assert curve.hit_blocks(capacity_blocks) == expected.hit_blocks


def test_a_curve_by_hand() -> None:
    """(1 2), (3), (1 2): its head is at place 2 when it comes back, its tail at 3."""
    curve = miss_ratio_curve(trace((1, 2), (3,), (1, 2)))
    assert curve.capacities == [2, 3]
    assert [curve.hit_blocks(n) for n in (1, 2, 3, 4, None)] == [0, 1, 2, 2, 2]


@pytest.mark.parametrize("capacity_blocks", [0, -1])
def test_a_curve_begins_at_one_block(capacity_blocks: int) -> None:
    """Smaller caches do not exist."""
    with pytest.raises(ConfigError, match="capacity_blocks"):
        miss_ratio_curve([]).at(capacity_blocks)


def test_nothing_comes_of_nothing() -> None:
    """A trace without requests, or with empty ones, has a curve too."""
    assert miss_ratio_curve([]).hit_blocks(None) == 0
    assert miss_ratio_curve(trace((), ())).at(5).requests == 2
    assert sampled_miss_ratio_curve(trace((), ())).capacities == []


class PlainOrder:
    """The order of last use as a list."""

    def __init__(self, most_blocks: int) -> None:
        self.most_blocks = most_blocks
        self.blocks: list[Ids] = []

    def use(self, path: list[Ids]) -> list[int]:
        places = [self.blocks.index(b) + 1 for b in path if b in self.blocks]
        rest = [block for block in self.blocks if block not in path]
        self.blocks = [*path, *rest][: self.most_blocks]
        return places


@given(prompts, st.integers(1, 9), st.integers(0, 12))
def test_places_are_those_of_a_plain_list(rows: list[Ids], most_blocks: int, kept_at: int) -> None:
    """With a limit, and when blocks are taken out of the middle."""
    numbers: dict[Ids, int] = {}
    order, plain = RecencyOrder(most_blocks), PlainOrder(most_blocks)
    for index, row in enumerate(rows):
        path = prefixes(row)
        if index >= kept_at:
            path = [block for block in path if len(block) % 2]
        if index == kept_at:
            odd = {number for block, number in numbers.items() if len(block) % 2}
            order.keep(odd.__contains__)
            plain.blocks = [block for block in plain.blocks if len(block) % 2]
        runs = order.use([numbers.setdefault(block, len(numbers)) for block in path])
        found = [run.place + n for run in runs for n in range(run.n_blocks)]
        assert found == plain.use(path)
        assert len(order) == len(plain.blocks)


def test_an_order_outlives_many_requests() -> None:
    """Requests are numbered anew when there are many, and places stay right."""
    rng = random.Random(1)
    order, plain = RecencyOrder(20), PlainOrder(20)
    for _ in range(5000):
        block = rng.randrange(30)
        assert [run.place for run in order.use([block])] == plain.use([(block,)])


@given(prompts, st.integers(1, 9))
def test_small_capacities_are_exact_in_a_sample_too(rows: list[Ids], exact_blocks: int) -> None:
    """Up to the number that was asked for."""
    requests = trace(*rows)
    exact = miss_ratio_curve(requests)
    sampled = sampled_miss_ratio_curve(requests, exact_blocks=exact_blocks, most_sampled_blocks=1)
    for capacity_blocks in range(1, exact_blocks + 1):
        assert sampled.at(capacity_blocks) == exact.at(capacity_blocks)


@given(prompts)
def test_a_sample_of_all_blocks_is_exact(rows: list[Ids]) -> None:
    """As long as none has to be left out."""
    requests = trace(*rows)
    sampled, exact = sampled_miss_ratio_curve(requests, exact_blocks=2), miss_ratio_curve(requests)
    for capacity_blocks in (*range(1, 20), None):
        assert sampled.at(capacity_blocks) == exact.at(capacity_blocks)


def chats(n_requests: int) -> Iterator[TraceRequest]:
    """Conversations behind one system prompt: turns in no order, recent ones more often."""
    rng = random.Random(7)
    turns: list[Ids] = []
    for n in range(n_requests):
        if turns and rng.random() < 0.7:
            at = max(len(turns) - 1 - int(rng.expovariate(1 / 150)), 0)
            before = turns[at]
        else:
            at, before = len(turns), tuple(range(20))
            turns.append(before)
        turns[at] = ids = (*before, *range(100 * n + 100, 100 * n + 100 + rng.randint(1, 20)))
        yield TraceRequest(float(n), 16 * len(ids), 1, ids, 16)


def worst_error(sampled: MissRatioCurve, exact: MissRatioCurve) -> float:
    """Return how far the hit ratio is off at most, at capacities from small to all."""
    n_blocks = exact.at(None).blocks
    capacities = [int(1.1**n) for n in range(130)]
    return max(abs(sampled.hit_blocks(n) - exact.hit_blocks(n)) / n_blocks for n in capacities)


def test_an_estimate_is_near() -> None:
    """An eighth to a sixteenth of the blocks tells the hit ratio to within two percent."""
    sampled = sampled_miss_ratio_curve(chats(4000), most_sampled_blocks=2000, exact_blocks=200)
    assert worst_error(sampled, miss_ratio_curve(chats(4000))) < 0.02


def test_an_estimate_needs_memory_for_its_sample_alone() -> None:
    """Three times as long a trace, mostly of new blocks, takes no more."""
    in_use: list[int] = []

    def stream() -> Iterator[TraceRequest]:
        for n in range(9000):
            if n % 3000 == 2999:
                in_use.append(sys.getallocatedblocks())
            yield TraceRequest(float(n), 320, 1, tuple(range(20 * n, 20 * n + 20)), 16)

    sampled_miss_ratio_curve(stream(), most_sampled_blocks=500, exact_blocks=500)
    assert in_use[-1] < in_use[0] + 5000 < in_use[0] + 6000 * 20


@pytest.mark.parametrize("name", ["most_sampled_blocks", "exact_blocks"])
def test_a_sample_has_blocks(name: str) -> None:
    """Neither number is below 1."""
    with pytest.raises(ConfigError, match=name):
        sampled_miss_ratio_curve([], **{name: 0})


@needs_traces
@pytest.mark.parametrize("name", ["conversation_trace.jsonl", "synthetic_trace.jsonl", "weka"])
def test_public_traces_have_the_curve_that_is_simulated(name: str) -> None:
    """At a few capacities, in all sums; estimated, to within one percent of the hit ratio."""
    requests = public_trace(name)
    curve = miss_ratio_curve(requests)
    for capacity_blocks in (1, 333, 1000, 10_000, 30_000):
        result = simulate(requests, policy=LruPolicy, capacity_blocks=capacity_blocks)
        assert curve.at(capacity_blocks) == result
    assert curve.at(None) == infinite_cache(requests)
    assert worst_error(sampled_miss_ratio_curve(requests), curve) < 0.01
