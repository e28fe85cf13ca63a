"""Replays: several caches on one reading, and every definition of a hit rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixcache.errors import ConfigError
from prefixcache.index.policies import PolicyOptions
from prefixcache.traces import open_trace
from prefixcache.traces.capacity import Capacity, parse_capacity
from prefixcache.traces.replay import ReplayResult, replay
from prefixcache.traces.runs import ReplayPlan
from prefixcache.traces.tally import Tally, Timeline
from tests.support.traces import mooncake, traces_folder, write_lines, write_mooncake
from tests.traces.public import needs_traces


def replayed(path: Path | str, **plan: object) -> ReplayResult:
    return replay(open_trace(str(path)), ReplayPlan(**plan))  # type: ignore[arg-type]


def hits(path: Path, **plan: object) -> list[tuple[str, int | None, int, int]]:
    return [
        (row.policy, row.capacity_blocks, row.block_tokens, row.counted.sums.hit_blocks)
        for row in replayed(path, **plan).rows
    ]


def test_each_policy_runs_at_each_capacity(tmp_path: Path) -> None:
    """What knows the future is computed after the reading, and keeps its place."""
    path = write_mooncake(tmp_path / "a.jsonl", (1,), (2,), (3,), (1,))
    found = hits(
        path,
        policies=["lru", "belady", "flat-lru"],
        capacities=[Capacity(1), Capacity()],
    )
    assert found == [
        ("lru", 1, 512, 0),
        ("belady", 1, 512, 1),
        ("flat-lru", 1, 512, 0),
        ("lru", None, 512, 1),
        ("belady", None, 512, 1),
        ("flat-lru", None, 512, 1),
    ]


def test_larger_blocks_are_hit_as_a_whole(tmp_path: Path) -> None:
    """Two blocks in one are a hit where both were; a part of one only where all of it was."""
    path = write_mooncake(tmp_path / "a.jsonl", (1, 2, 3), (1, 2, 3), (1, 4), (1, 2))
    found = hits(path, block_tokens=[None, 1024])
    assert found == [("lru", None, 512, 3 + 1 + 2), ("lru", None, 1024, 2 + 0 + 1)]


@pytest.mark.parametrize("wanted", [256, 768])
def test_blocks_grow_by_whole_ones(tmp_path: Path, wanted: int) -> None:
    """Nothing is known of parts of a block."""
    path = write_mooncake(tmp_path / "a.jsonl", (1,))
    with pytest.raises(ConfigError, match="a multiple of the trace's own 512"):
        replayed(path, block_tokens=[wanted])


def test_capacities_are_in_blocks_or_tokens() -> None:
    """Tokens are as many blocks as are full."""
    assert parse_capacity("1000").in_blocks(512) == 1000
    assert parse_capacity("1_000blocks").in_blocks(512) == 1000
    assert parse_capacity("1300tokens").in_blocks(512) == 2
    assert parse_capacity("unlimited").in_blocks(512) is None
    with pytest.raises(ConfigError, match="less than one of the trace's blocks of 512"):
        parse_capacity("511tokens").in_blocks(512)


@pytest.mark.parametrize("text", ["0", "-1", "1e3", "", "tokens", "5 GiB"])
def test_other_capacities_are_refused(text: str) -> None:
    """The error shows the forms."""
    with pytest.raises(ConfigError, match="must be blocks"):
        parse_capacity(text)


def test_definitions_of_a_hit_rate_differ(tmp_path: Path) -> None:
    """By token, by block, and the mean of the requests' own, each worked out by hand."""
    rows = [
        mooncake(1, 2, at_ms=0, input_length=600),  # two blocks, the second of 88 tokens
        mooncake(1, 2, at_ms=1, input_length=600),  # all of it
        mooncake(1, 3, 4, at_ms=2),  # a third of it
    ]
    (row,) = replayed(write_lines(tmp_path / "a.jsonl", *rows)).rows
    rates = row.counted.rates
    assert rates.by_token == pytest.approx((600 + 512) / (600 + 600 + 1536))
    assert rates.by_block == pytest.approx((2 + 1) / 7)
    assert rates.mean_per_request == pytest.approx((0 + 1 + 1 / 3) / 3)
    assert rates.mean_per_request_by_block == pytest.approx((0 + 1 + 1 / 3) / 3)


def test_a_warm_up_fills_the_cache_and_is_left_out(tmp_path: Path) -> None:
    """The sums of all requests stay as they are."""
    path = write_mooncake(tmp_path / "a.jsonl", (1,), (1,), (2,), (1,))
    (row,) = replayed(path, warm_up_requests=1).rows
    assert row.after_warm_up is not None
    assert (row.counted.sums.requests, row.counted.sums.hit_blocks) == (4, 2)
    assert (row.after_warm_up.sums.requests, row.after_warm_up.sums.hit_blocks) == (3, 2)
    assert row.after_warm_up.rates.by_block == pytest.approx(2 / 3)


def test_a_warm_up_of_all_requests_leaves_nothing(tmp_path: Path) -> None:
    """Rates of nothing are unknown, not zero."""
    (row,) = replayed(write_mooncake(tmp_path / "a.jsonl", (1,)), warm_up_requests=9).rows
    assert row.warm_up_requests == 1
    assert row.after_warm_up is not None
    assert row.after_warm_up.rates.by_token is None


def test_options_reach_the_policies(tmp_path: Path) -> None:
    """A time limit counts in seconds of the trace, which may be made to pass faster."""
    path = write_mooncake(tmp_path / "a.jsonl", (1,), (1,), (1,))
    for idle_ttl_seconds, expected in ((0.5, 0), (2.0, 2)):
        options = PolicyOptions(idle_ttl_seconds=idle_ttl_seconds)
        assert hits(path, policies=["ttl"], options=options)[0][-1] == expected


def test_a_policy_that_is_none_is_refused() -> None:
    """The error names those that there are."""
    with pytest.raises(ConfigError, match=r"lru, .*belady"):
        ReplayPlan(policies=["mru"])


def test_periods_grow_with_the_trace(tmp_path: Path) -> None:
    """However long it is there are at most 128 of them, and nothing is lost."""
    rows = [mooncake(1, at_ms=1000 * second) for second in range(1000)]
    (row,) = replayed(write_lines(tmp_path / "a.jsonl", *rows)).rows
    assert len(row.periods) == 125
    assert {period.requests for period in row.periods} == {8}
    assert [period.start_seconds for period in row.periods[:3]] == [0, 8, 16]
    assert sum(period.hit_tokens for period in row.periods) == 999 * 512


def test_nothing_counted_is_no_rate() -> None:
    """There is nothing to divide by."""
    assert set(Tally().counted().rates) == {None}
    assert Timeline().periods() == []


@needs_traces
def test_the_conversation_trace_has_the_published_rates() -> None:
    """By block, by token and the mean per request, with room for all."""
    (row,) = replayed(traces_folder() / "conversation_trace.jsonl").rows
    sums, rates = row.counted
    assert (sums.hit_blocks, sums.blocks) == (105_710, 288_500)
    assert (sums.hit_tokens, sums.tokens) == (54_098_411, 144_793_823)
    assert round(rates.by_block or 0, 4) == 0.3664
    assert round(rates.by_token or 0, 4) == 0.3736
    assert round(rates.mean_per_request or 0, 4) == 0.4094


@needs_traces
def test_the_conversation_trace_has_the_published_hits() -> None:
    """Each policy at the capacities for which figures are known."""
    path = traces_folder() / "conversation_trace.jsonl"
    capacities = [Capacity(1000), Capacity(10_000)]
    found = hits(path, policies=["lru", "flat-lru"], capacities=capacities)
    assert [hit_blocks for *_, hit_blocks in found] == [12_847, 12_831, 61_046, 60_921]
    assert hits(path, policies=["belady"], capacities=capacities[:1])[0][-1] == 55_019
