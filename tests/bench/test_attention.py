"""The measurement of attention: its steps are what it says, and its rows what was timed."""

from __future__ import annotations

import itertools
from itertools import chain

import pytest
import torch

from prefixcache.bench import attention
from prefixcache.bench.attention import AttentionBench, DecodeRow, PromptRow, decode_chunks
from prefixcache.engine import attention_only
from prefixcache.engine.attention import paged_attention
from prefixcache.engine.attention_only import AttentionOnly, AttentionShape
from prefixcache.engine.parts import RunPart
from prefixcache.engine.plan import Step

SMALL = AttentionShape(n_layers=2, heads=3, kv_heads=1, head_dim=8)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Step]]:
    """The layer and step of each call of attention."""
    found: list[tuple[int, Step]] = []
    attend = paged_attention

    def noted(module: torch.nn.Module, *tensors: torch.Tensor | None, step: Step) -> object:
        assert torch.get_num_threads() == 1
        assert isinstance(module.layer_idx, int)
        found.append((module.layer_idx, step))
        return attend(module, *tensors, step=step)  # type: ignore[arg-type]

    monkeypatch.setattr(attention_only, "paged_attention", noted)
    return found


def test_steps_run_layer_by_layer_or_one_by_one(calls: list[tuple[int, Step]]) -> None:
    """`by_layer` decides which comes first, and only the work is timed."""
    clock = itertools.count(step=7).__next__
    only = AttentionOnly(SMALL, 512)
    steps = [[chunk] for chunk in decode_chunks(2, 128)]
    assert only.seconds(steps, clock, by_layer=True) == 7
    assert [layer for layer, _ in calls] == [0, 0, 1, 1]
    calls.clear()
    only.seconds(steps, clock, by_layer=False)
    assert [layer for layer, _ in calls] == [0, 1, 0, 1]


def test_streams_share_the_prefix_and_nothing_else(calls: list[tuple[int, Step]]) -> None:
    """Together the prefix is one part for all rows; each stream sees its tail up to itself."""
    chunks = decode_chunks(3, 128)
    AttentionOnly(SMALL, 1024).seconds([chunks], clock=float, by_layer=True)
    parts = calls[0][1].groups[0].parts
    assert parts[0] == RunPart(slice(0, 3), slice(0, 128))
    assert [chunk.first_position - 127 for chunk in chunks] == [16, 32, 48]
    slots = sorted(calls[0][1].groups[0].slots.index.tolist())
    assert slots == [128 + 15, 256 + 31, 384 + 47]


def test_rows_are_medians_without_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run warms up; figures and ratios are medians of the others."""
    runs = [(9.0,) * 3, (0.001, 0.004, 0.01), (0.003, 0.004, 0.01), (0.002, 0.004, 0.008)]
    times = chain(*runs, (9.0, 0.005, 0.007, 0.006))

    def seconds(*_: object, **__: object) -> float:
        return next(times)

    monkeypatch.setattr(AttentionOnly, "seconds", seconds)
    bench = AttentionBench([128], [3], [20], [64], repeats=3, shape=SMALL)
    assert list(bench.measure(float)) == [
        DecodeRow(3, 128, 2.0, 4.0, 10.0, 0.5, 0.25),
        PromptRow(20, 64, 6.0),
    ]


def test_what_is_measured_really_runs(calls: list[tuple[int, Step]]) -> None:
    """Every row of a small run has times, and a prompt's chunk reads its cached tokens."""
    bench = AttentionBench([64], [2], [20], [0, 32], repeats=1, shape=SMALL)
    ticks = itertools.count()
    rows = list(bench.measure(lambda: float(next(ticks))))
    assert [type(row) for row in rows] == [DecodeRow, PromptRow, PromptRow]
    assert calls[-1][1].positions[0].tolist() == list(range(32, 52))
    assert all(attention.as_text(row).endswith(("ms", ")")) for row in rows)


def test_tails_come_again_when_there_are_more_streams() -> None:
    """The ninth stream's tail is as long as the first one's, and lies elsewhere."""
    chunks = decode_chunks(9, 16)
    assert chunks[8].first_position == chunks[0].first_position == 16 + 15
    assert chunks[8].tables[0][1].first == 1 + 8 * 8
