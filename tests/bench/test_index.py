"""The measurement of the index, at tiny sizes: what it counts, never how long it takes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from itertools import pairwise

import pytest

from prefixcache.bench.index import MEMORY, NAMES, TIMED, measure
from prefixcache.bench.index_memory import measure_memory
from prefixcache.bench.index_rows import Row, as_data, as_text, medians
from prefixcache.bench.index_runs import (
    measure_chats,
    measure_conversation,
    measure_long,
    measure_shared,
    measure_thin,
)
from prefixcache.bench.index_workloads import (
    BLOCK_TOKENS,
    Chats,
    Conversation,
    LongPrompt,
    ManyBlocks,
    SharedPrompts,
    ThinLeaves,
    random_tokens,
)
from prefixcache.index import TOKEN_BYTES, common_prefix_tokens, unpack

SHARED = SharedPrompts(
    n_requests=40, n_systems=3, system_tokens=64, new_tokens=40, pool_blocks=1000
)
CHATS = Chats(
    n_requests=60,
    n_conversations=5,
    n_systems=2,
    system_tokens=32,
    least_turn_tokens=16,
    most_turn_tokens=48,
    most_tokens=160,
    pool_blocks=1000,
)
clock = time.thread_time


def hits_without_eviction(prompts: Iterable[bytes]) -> int:
    """The reference: what each prompt shares with the full blocks of any earlier one."""
    stored: list[bytes] = []
    total = 0
    for prompt in prompts:
        most = len(prompt) // TOKEN_BYTES - 1
        shared = (common_prefix_tokens(prompt, 0, known, 0) for known in stored)
        total += min(max(shared, default=0), most)
        block_bytes = BLOCK_TOKENS * TOKEN_BYTES
        stored.append(prompt[: len(prompt) // block_bytes * block_bytes])
    return total


def test_ids_stay_below_the_vocabulary() -> None:
    """Random ids are seeded, in range, and reach both of its ends."""
    ids = unpack(random_tokens(random.Random(7), 20_000))
    assert ids == unpack(random_tokens(random.Random(7), 20_000))
    assert max(ids) < 2**17
    assert max(ids) > 2**17 * 0.999
    assert min(ids) < 2**17 * 0.001


def test_shared_prompts_hit_their_system_prompts() -> None:
    """A: every request but the first of each system prompt finds that prompt."""
    row = measure_shared(SHARED, clock)
    prompts = list(SHARED.prompts())
    assert row.figures["hit_tokens"] == hits_without_eviction(prompts)
    assert row.figures["hit_tokens"] >= (40 - 3) * 64
    assert row.figures["requests"] == 40
    assert row.figures["prompt_tokens"] == 40 * 104
    assert row.figures["hit_rate"] == row.figures["hit_tokens"] / (40 * 104)
    for stage in ("pack", "acquire", "commit", "release", "request"):
        assert row.figures[f"{stage}_us_mean"] > 0
        assert row.figures[f"{stage}_us_median"] > 0


def test_a_long_prompt_matches_all_but_its_last_token() -> None:
    """B: the stored prompt is found, less the token that is always computed."""
    row = measure_long(LongPrompt(n_tokens=160, pool_blocks=20), clock)
    assert row.figures["prompt_tokens"] == 160
    assert row.figures["matched_tokens"] == 159
    for ratio in ("match", "acquire", "reinsert"):
        expected = row.figures[f"{ratio}_us"] / row.figures["compare_us"]
        assert row.figures[f"{ratio}_to_compare"] == pytest.approx(expected)


def test_chats_hit_their_history() -> None:
    """C: with room for all of it, each request finds what its conversation stored."""
    row = measure_chats(CHATS, clock)
    assert row.figures["hit_tokens"] == hits_without_eviction(CHATS.prompts())
    assert row.figures["evicted_blocks"] == row.figures["evict_calls"] == 0
    assert row.figures["requests"] == 60


def test_chats_grow_and_start_again() -> None:
    """A request continues its conversation, or starts a new one when it would get too long."""
    prompts = list(CHATS.prompts())
    lengths = [len(prompt) // TOKEN_BYTES for prompt in prompts]
    assert max(lengths) <= 160
    assert min(lengths) >= 32 + 16
    starts = {prompt[: 32 * TOKEN_BYTES] for prompt in prompts}
    assert len(starts) == 2
    assert any(later.startswith(earlier) for earlier, later in pairwise(sorted(prompts)))


def test_chats_under_pressure_evict() -> None:
    """C in a small pool gives up blocks, and hits less than with room for all."""
    small = Chats(
        **{field: getattr(CHATS, field) for field in CHATS.__slots__} | {"pool_blocks": 24}
    )
    row = measure_chats(small, clock)
    assert 0 < row.figures["hit_tokens"] < hits_without_eviction(small.prompts())
    assert row.figures["evicted_blocks"] > 0


def test_each_thin_leaf_takes_the_place_of_one() -> None:
    """C2: every timed request evicts exactly the blocks of one other."""
    row = measure_thin(ThinLeaves(n_leaves=30, n_timed=12), clock)
    assert row.figures["leaves"] == 30
    assert row.figures["requests"] == row.figures["evict_calls"] == 12
    assert row.figures["evicted_blocks"] == 12 * 4


def test_a_conversation_finds_all_of_its_history() -> None:
    """chain: each turn hits everything before it."""
    row = measure_conversation(Conversation(n_turns=12, window=3), clock)
    assert row.figures["turns"] == 12
    assert row.figures["window_turns"] == 3
    assert 1 <= row.figures["longest_path_nodes"] <= 12
    assert row.figures["hit_tokens"] == sum(64 * turn for turn in range(12))
    for end in ("first", "last"):
        assert row.figures[f"{end}_turns_us"] > 0
        assert row.figures[f"{end}_compare_us"] > 0


def test_memory_is_counted_over_different_blocks() -> None:
    """D: every block of the workload is stored once, and none is evicted."""
    workload = ManyBlocks(n_blocks=2000, n_systems=4, system_tokens=256, new_tokens=64)
    blocks = {
        prompt[: (i + 1) * BLOCK_TOKENS * TOKEN_BYTES]
        for prompt in workload.prompts()
        for i in range(320 // BLOCK_TOKENS)
    }
    row = measure_memory(workload)
    assert row.figures["blocks"] == len(blocks) >= 2000
    assert row.figures["requests"] == len(list(workload.prompts()))


def test_rows_hold_the_median_of_the_runs() -> None:
    """Each figure is combined by itself; whole numbers stay whole."""
    runs = [Row("A", {"x_us": x, "hits": 7}) for x in (3.0, 1.0004, 2.0)]
    row = medians(runs)
    assert row == Row("A", {"x_us": 2, "hits": 7})
    assert medians(runs[:2]).figures["x_us"] == 2.0
    assert as_data([row]) == [{"workload": "A", "figures": {"x_us": 2, "hits": 7}}]
    assert [line.split() for line in as_text(row).splitlines()] == [
        ["A", "x_us", "2"],
        ["A", "hits", "7"],
    ]


def test_names_cover_what_can_be_measured() -> None:
    """Each name has runs of its own, or is the memory's."""
    assert set(NAMES) == {*TIMED, MEMORY}


def test_runs_are_repeated_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row comes of all repeats of a workload."""
    calls: list[str] = []

    def run(clock: object) -> Row:
        calls.append("run")
        return Row("A", {"n": len(calls)})

    monkeypatch.setitem(TIMED, "A", (run,))
    assert list(measure(["A"], repeats=3, clock=clock)) == [Row("A", {"n": 2})]
    assert len(calls) == 3
