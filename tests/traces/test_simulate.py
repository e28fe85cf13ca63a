"""How much of a trace is cached: answers worked out by hand, and the published ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache.errors import ConfigError
from prefixcache.index.policies import LruPolicy, TtlPolicy
from prefixcache.traces import TraceRequest, replayed, simulate
from tests.traces.plain import Ids, PlainLru, plain_lru, prompts, trace
from tests.traces.public import needs_traces, public_trace


def hit_blocks(requests: list[TraceRequest], capacity_blocks: int | None) -> int:
    return simulate(requests, policy=LruPolicy, capacity_blocks=capacity_blocks).hit_blocks


def test_leading_blocks_that_are_cached_are_hits() -> None:
    """With room for all, each block after its first time; a whole prompt may be a hit."""
    assert hit_blocks(trace((1, 2, 3), (1, 2, 4), (1, 2, 3), (2, 3)), None) == 0 + 2 + 3 + 0


def test_tails_go_first_and_the_longest_unused_before_others() -> None:
    """(1 2 3), (1 2 4) and (5) fill four blocks: 3 had to go, then 4 goes for it."""
    requests = trace((1, 2, 3), (1, 2, 4), (5,), (1, 2, 3), (1, 2, 4))
    assert hit_blocks(requests, 4) == 0 + 2 + 0 + 2 + 2
    assert hit_blocks(requests, 5) == 0 + 2 + 0 + 3 + 3


def test_of_a_request_that_is_too_long_the_head_is_kept() -> None:
    """As many leading blocks as there is room for."""
    assert hit_blocks(trace((1, 2, 3), (1, 2, 3)), 2) == 2


def test_sums_count_tokens_and_attention() -> None:
    """A partial last block counts with its tokens; a token attends to itself and all before."""
    twice = [TraceRequest(0.0, 10, 1, (1, 2, 3), 4)] * 2
    result = simulate(twice, policy=LruPolicy, capacity_blocks=None)
    assert (result.requests, result.blocks, result.hit_blocks) == (2, 6, 3)
    assert (result.tokens, result.hit_tokens) == (20, 10)
    assert (result.attention_pairs, result.hit_attention_pairs) == (2 * 55, 55)


@pytest.mark.parametrize(("idle_ttl_seconds", "expected"), [(2, 0), (3, 2)])
def test_what_is_overdue_is_gone_when_a_request_arrives(
    idle_ttl_seconds: float, expected: int
) -> None:
    """A time limit counts in seconds of the trace."""
    requests = trace((1, 2), (3,), (1, 2))
    result = simulate(
        requests, policy=lambda: TtlPolicy(idle_ttl_seconds=idle_ttl_seconds), capacity_blocks=9
    )
    assert result.hit_blocks == expected


def test_a_capacity_is_at_least_one_block() -> None:
    """Nothing can be told of a cache without room."""
    with pytest.raises(ConfigError, match="capacity_blocks"):
        hit_blocks(trace((1,)), 0)


@given(prompts, st.integers(1, 9))
def test_a_plain_cache_has_the_same_hits(rows: list[Ids], capacity_blocks: int) -> None:
    """Request by request, at every capacity, whether a trace's ids are consistent or not."""
    requests = trace(*rows)
    found = replayed(requests, policy=LruPolicy, capacity_blocks=capacity_blocks)
    assert [hits for _, hits in found] == list(plain_lru(requests, capacity_blocks))


@given(
    prompts,
    st.integers(1, 9),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0, 8.0]), min_size=12, max_size=12),
)
def test_requests_that_overlap_hit_what_a_plain_cache_has(
    rows: list[Ids], capacity_blocks: int, seconds: list[float]
) -> None:
    """Whatever runs how long: who waits, what is held and what gives way are the model's."""
    requests = trace(*rows)
    cache = PlainLru(capacity_blocks)
    expected = [cache.run(*both) for both in zip(requests, seconds, strict=False)]
    of = dict(zip(map(id, requests), seconds, strict=False))
    found = replayed(
        requests,
        policy=LruPolicy,
        capacity_blocks=capacity_blocks,
        running_seconds=lambda request: of[id(request)],
    )
    assert [hits for _, hits in found] == expected


def running(seconds: Sequence[float], capacity_blocks: int, *rows: Ids) -> list[int]:
    found = replayed(
        trace(*rows),
        policy=LruPolicy,
        capacity_blocks=capacity_blocks,
        running_seconds=lambda request: seconds[int(request.timestamp_seconds)],
    )
    return [hits for _, hits in found]


def test_a_running_request_keeps_its_blocks() -> None:
    """The second block of (1 2) has to go for (6) in a cache of five, unless it is running."""
    rows: tuple[Ids, ...] = ((1, 2), (3,), (4, 5), (6,), (1, 2))
    assert running([0, 0, 0, 0, 0], 5, *rows) == [0, 0, 0, 0, 1]
    assert running([9, 0, 0, 0, 0], 5, *rows) == [0, 0, 0, 0, 2]


def test_what_runs_can_be_matched_already() -> None:
    """A twin finds the prompt of a request that has begun and not ended."""
    assert running([100, 100, 100], 9, (1, 2), (1, 2), (1, 3)) == [0, 2, 1]


def test_who_finds_no_room_waits_for_the_next_end() -> None:
    """With room for one at a time (3 4) starts when (1 2) ends, and the next when that ends."""
    rows: tuple[Ids, ...] = ((1, 2), (3, 4), (1, 2))
    assert running([9.5, 9.5, 9.5], 3, *rows) == [0, 0, 1]
    assert running([9.5, 9.5, 9.5], 5, *rows) == [0, 0, 2]


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_nothing_runs_backwards(seconds: float) -> None:
    """A length below 0 is refused."""
    with pytest.raises(ConfigError, match="running_seconds"):
        running([seconds], 9, (1,))


@pytest.mark.parametrize("wide", [2**64, -1, 2**200])
def test_ids_of_any_width_are_told_apart(wide: int) -> None:
    """Also those that need more than 64 bits, and those that share their lowest ones."""
    assert hit_blocks(trace((wide, 1), (wide, 1), (wide + 2**70, 1), (wide + 2**32, 1)), None) == 2
    assert hit_blocks(trace((5,), (5 + 2**32,), (5,)), None) == 1


def test_a_stream_is_not_remembered() -> None:
    """While blocks that never come back pass by, no more memory is in use."""
    in_use: list[int] = []

    def stream() -> Iterator[TraceRequest]:
        for n in range(6000):
            if n % 2000 == 1999:
                in_use.append(sys.getallocatedblocks())
            yield TraceRequest(float(n), 80, 1, tuple(range(20 * n + 1000, 20 * n + 1020)), 4)

    simulate(stream(), policy=LruPolicy, capacity_blocks=100)
    most = 4000 * 2  # of each of the last requests that have gone, a digest is kept: one number
    assert in_use[-1] - in_use[0] < most < 4000 * 20


@needs_traces
@pytest.mark.parametrize(
    ("capacity_blocks", "expected"),
    [(1000, 12_847), (10_000, 61_046), (30_000, 93_978), (50_000, 102_290), (None, 105_710)],
)
def test_the_conversation_trace_gives_the_known_hits(
    capacity_blocks: int | None, expected: int
) -> None:
    """Least recently used, leaves only, is one number per capacity, whoever computes it."""
    conversation = public_trace("conversation_trace.jsonl")
    result = simulate(iter(conversation), policy=LruPolicy, capacity_blocks=capacity_blocks)
    assert result.hit_blocks == expected
    assert (result.requests, result.blocks, result.tokens) == (12_031, 288_500, 144_793_823)
    if capacity_blocks is None:
        assert result.hit_tokens == 54_098_411
