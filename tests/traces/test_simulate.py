"""How much of a trace is cached: answers worked out by hand, and the published ones."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import pytest

from prefixcache.errors import ConfigError
from prefixcache.index.policies import LruPolicy, TtlPolicy
from prefixcache.traces import TraceRequest, read_trace, simulate

TRACES = os.environ.get("PREFIXCACHE_TRACES")


def trace(*prompts: tuple[int, ...]) -> list[TraceRequest]:
    """One request a second, of whole blocks of four tokens."""
    return [
        TraceRequest(float(second), 4 * len(ids), 1, ids, 4) for second, ids in enumerate(prompts)
    ]


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


@lru_cache
def conversation() -> list[TraceRequest]:
    assert TRACES is not None
    return read_trace(Path(TRACES) / "conversation_trace.jsonl")


@pytest.mark.skipif(TRACES is None, reason="PREFIXCACHE_TRACES names no folder with traces")
@pytest.mark.parametrize(
    ("capacity_blocks", "expected"),
    [(1000, 12_847), (10_000, 61_046), (30_000, 93_978), (50_000, 102_290), (None, 105_710)],
)
def test_the_conversation_trace_gives_the_known_hits(
    capacity_blocks: int | None, expected: int
) -> None:
    """Least recently used, leaves only, is one number per capacity, whoever computes it."""
    result = simulate(conversation(), policy=LruPolicy, capacity_blocks=capacity_blocks)
    assert result.hit_blocks == expected
    assert (result.requests, result.blocks, result.tokens) == (12_031, 288_500, 144_793_823)
    if capacity_blocks is None:
        assert result.hit_tokens == 54_098_411
