"""The best that can be done at a capacity."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixcache.errors import ConfigError
from prefixcache.index.policies import POLICY_NAMES, make_policy
from prefixcache.traces import flat_lru, infinite_cache, optimum, simulate
from tests.traces.plain import Ids, best, prompts, trace
from tests.traces.public import needs_traces, public_trace

tiny = st.lists(st.lists(st.integers(0, 1), max_size=3).map(tuple), max_size=7)


@settings(deadline=None)
@given(tiny, st.integers(1, 4), st.booleans())
def test_no_choice_does_better(
    rows: list[Ids], capacity_blocks: int, running_takes_room: bool
) -> None:
    """Trying all choices of what to keep finds as many hits, and not one more."""
    found = optimum(
        trace(*rows), capacity_blocks=capacity_blocks, running_takes_room=running_takes_room
    )
    expected = best(rows, capacity_blocks, running_takes_room=running_takes_room)
    assert found.hit_blocks == expected


def test_what_comes_back_first_is_kept() -> None:
    """Of (1), (2) and (3), a cache of two gives up the one that is used again last."""
    assert optimum(trace((1,), (2,), (3,), (2,), (1,), (3,)), capacity_blocks=2).hit_blocks == 2


def test_a_block_is_not_worth_one_that_comes_back_sooner() -> None:
    """(2) would take the room of (1), and need not be kept; while it runs it needs room."""
    requests = trace((1,), (2,), (1,), (2,))
    assert optimum(requests, capacity_blocks=1).hit_blocks == 1
    assert optimum(requests, capacity_blocks=1, running_takes_room=True).hit_blocks == 0


@settings(deadline=None)
@given(prompts, st.integers(1, 9))
def test_no_policy_is_better(rows: list[Ids], capacity_blocks: int) -> None:
    """In the real index, where what runs takes room, no policy has more hits than the bound."""
    requests = trace(*rows)
    most = optimum(requests, capacity_blocks=capacity_blocks, running_takes_room=True).hit_blocks
    assert most <= optimum(requests, capacity_blocks=capacity_blocks).hit_blocks
    for name in POLICY_NAMES:
        result = simulate(
            requests, policy=partial(make_policy, name), capacity_blocks=capacity_blocks
        )
        assert result.hit_blocks <= most


@given(prompts)
def test_without_a_limit_all_that_was_seen_is_hit(rows: list[Ids]) -> None:
    """Then nothing is chosen, and the sums are those of an infinite cache."""
    assert optimum(trace(*rows), capacity_blocks=None) == infinite_cache(iter(trace(*rows)))


@pytest.mark.parametrize("capacity_blocks", [0, -1])
def test_a_cache_has_room(capacity_blocks: int) -> None:
    """A capacity is at least one block."""
    with pytest.raises(ConfigError, match="capacity_blocks"):
        optimum([], capacity_blocks=capacity_blocks)
    with pytest.raises(ConfigError, match="capacity_blocks"):
        flat_lru([], capacity_blocks=capacity_blocks)


def test_a_flat_cache_gives_up_heads_before_tails() -> None:
    """(3) takes the place of the head of (1 2), whose tail is of no use then."""
    requests = trace((1, 2), (3,), (1, 2))
    assert flat_lru(requests, capacity_blocks=2).hit_blocks == 0
    assert flat_lru(requests, capacity_blocks=3).hit_blocks == 2


@needs_traces
@pytest.mark.parametrize(
    ("capacity_blocks", "expected", "with_running"),
    [(1000, 55_019, 51_705), (5000, 98_448, 97_995), (10_000, 105_710, 105_710)],
)
def test_the_conversation_trace_has_the_known_optimum(
    capacity_blocks: int, expected: int, with_running: int
) -> None:
    """From 10,000 blocks on the best choice hits all that an infinite cache hits."""
    requests = public_trace("conversation_trace.jsonl")
    assert optimum(requests, capacity_blocks=capacity_blocks).hit_blocks == expected
    held = optimum(requests, capacity_blocks=capacity_blocks, running_takes_room=True)
    assert held.hit_blocks == with_running


@needs_traces
@pytest.mark.parametrize(("capacity_blocks", "expected"), [(1000, 12_831), (10_000, 60_921)])
def test_the_conversation_trace_has_the_known_flat_hits(
    capacity_blocks: int, expected: int
) -> None:
    """A cache that knows nothing of prefixes does a little worse."""
    requests = public_trace("conversation_trace.jsonl")
    assert flat_lru(requests, capacity_blocks=capacity_blocks).hit_blocks == expected
