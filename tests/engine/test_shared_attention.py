"""Attention over shared runs is attention: compared with the plain formula over all keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from prefixcache.engine import softmax
from prefixcache.engine.parts import Mask, OwnPart, Part, RunPart, TailPart
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.kv import KVLayout, KVStore, LayerGroup
from prefixcache.types import BlockId, Span
from tests.engine.attention_world import CPU, KEY_DIM, Scene, World, worlds

SLOW = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(worlds())
def test_together_and_alone_equal_the_plain_formula(world: World) -> None:
    """Whatever runs its chunks share, a row's attention is softmax over what it sees."""
    scene = Scene(world)
    everyone = list(range(len(world.sequences)))
    together = scene.found(everyone)
    for index in everyone:
        alone = scene.found([index])
        for group in range(len(scene.groups)):
            wanted = scene.wanted(group, index)
            for found in (together[group][index], alone[group][0]):
                torch.testing.assert_close(found, wanted, atol=3e-6, rtol=1e-5)


def test_scores_are_made_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows are attended to some at a time, and give what all give at once."""
    torch.manual_seed(1)
    query, key, value = torch.randn(2, 1, 40, 8), torch.randn(2, 1, 30, 8), torch.randn(2, 1, 30, 5)
    bias = torch.randn(40, 30)
    scores = softmax.Scores(0.3, softcap=2.0)
    wanted = softmax.softmax_attention(query, key, value, scores, bias)
    sizes: list[int] = []
    rows = softmax._plain_rows

    def noted(query: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        sizes.append(query.shape[-2])
        return rows(query, *rest)

    monkeypatch.setattr(softmax, "_plain_rows", noted)
    monkeypatch.setattr(softmax, "MOST_SCORES", 2 * 30 * 7)
    found = softmax.softmax_attention(query, key, value, scores, bias)
    assert sizes == [7, 7, 7, 7, 7, 5]
    torch.testing.assert_close(found, wanted)


@SLOW
@given(worlds())
def test_every_row_reads_each_visible_slot_once(world: World) -> None:
    """The parts of a plan cover what each row sees, and nothing twice."""
    scene = Scene(world)
    everyone = list(range(len(world.sequences)))
    step = plan_step(scene.chunks, scene.store, CPU)
    for group, layers in enumerate(scene.groups):
        slots = step.groups[group].slots.index
        seen = torch.zeros(len(slots), scene.store.n_blocks * world.block_size)
        for part in step.groups[group].parts:
            _count(part, seen, slots)
        for index, rows in zip(everyone, scene.rows(step, group, everyone), strict=True):
            mine = scene.slots(scene.tables[group][index])[: scene.lengths[index]]
            for offset, row in enumerate(rows):
                last = scene.chunks[index].first_position + offset
                oldest = 0 if layers.window is None else max(0, last - layers.window + 1)
                wanted = torch.zeros(seen.shape[1])
                wanted[mine[oldest : last + 1]] = 1
                wanted[mine[: min(layers.lead, last + 1)]] = 1
                assert torch.equal(seen[row], wanted)


def _count(part: Part, seen: torch.Tensor, slots: torch.Tensor) -> None:
    """Add 1 in `seen` [rows, slots] wherever the part lets a row see a slot."""
    if isinstance(part, RunPart):
        seen[part.rows, part.slots] += 1
    elif isinstance(part, OwnPart):
        n = part.rows.stop - part.rows.start
        mask = torch.ones(n, n).tril() if part.mask is None else _visible(part.mask)
        for offset in range(n):
            seen[part.rows.start + offset, slots[part.rows]] += mask[offset]
    else:
        each = (part.rows.stop - part.rows.start) // part.n_readers
        kept = part.slots.index.view(part.n_readers, -1)
        mask = torch.ones(part.n_readers, each, kept.shape[1])
        if part.mask is not None:
            mask = _visible(part.mask)
        for reader in range(part.n_readers):
            for offset in range(each):
                row = part.rows.start + reader * each + offset
                seen[row].index_add_(0, kept[reader], mask[reader, offset])


def _visible(mask: Mask) -> torch.Tensor:
    return (mask.bias(1, torch.float32) == 0).float()


def planned(chunks: list[Chunk], window: int | None = None, lead: int = 0) -> tuple[Part, ...]:
    group = LayerGroup((0,), 1, KEY_DIM, KEY_DIM, window, lead)
    store = KVStore(KVLayout((group,), 16, torch.float32), 256, CPU)
    return plan_step(chunks, store, CPU).groups[0].parts


def decode(position: int, *spans: tuple[int, int]) -> Chunk:
    table = [Span(BlockId(first), n_blocks) for first, n_blocks in spans]
    return Chunk([7], position, (table,), n_logits=1)


def in_place(parts: tuple[Part, ...]) -> list[tuple[int, int, int, int]]:
    """Return (first row, end row, first slot, end slot) of what is read in place."""
    return [
        (part.rows.start, part.rows.stop, part.slots.start, part.slots.stop)
        for part in parts
        if isinstance(part, RunPart)
    ]


def test_nested_prefixes_are_read_once_each() -> None:
    """A, B and C share 20 blocks, A and C 10 more: two slices, and one copy of the three tails."""
    parts = planned(
        [
            decode(485, (0, 20), (40, 11)),
            decode(325, (0, 20), (90, 1)),
            decode(490, (0, 20), (40, 10), (80, 1)),
        ]
    )
    assert in_place(parts) == [(0, 3, 0, 320), (0, 2, 640, 800)]
    (tail,) = (part for part in parts if isinstance(part, TailPart))
    assert (tail.rows, tail.n_readers) == (slice(0, 3), 3)
    assert len(parts) == 3


def test_runs_are_shared_however_they_are_cut() -> None:
    """Where one table has a long run, another two neighbouring ones: the same slots are one run."""
    parts = planned([decode(330, (0, 30)), decode(330, (0, 5), (5, 15), (90, 1))])
    assert in_place(parts) == [(0, 2, 0, 320)]


def test_windows_share_what_all_of_them_see() -> None:
    """A run is shared from where the last window begins."""
    parts = planned([decode(320, (0, 20), (40, 1)), decode(350, (0, 20), (60, 2))], window=200)
    assert in_place(parts) == [(0, 2, 151, 320)]


def test_a_lead_is_shared_however_far_its_readers_have_gone() -> None:
    """Those who have long left their common prefix read its first tokens once for all."""
    chunks = [
        Chunk([7], last, ([Span(BlockId(first), 4)],), 1, (at,), leads=([Span(BlockId(0), 6)],))
        for last, first, at in ((480, 40, 27), (800, 60, 47), (970, 80, 57))
    ]
    parts = planned(chunks, window=20, lead=90)
    assert in_place(parts) == [(0, 3, 0, 90)]
    (tail,) = (part for part in parts if isinstance(part, TailPart))
    assert (tail.rows, tail.n_readers) == (slice(0, 3), 3)
    assert len(parts) == 2


def test_a_lead_that_a_window_still_covers_costs_no_call() -> None:
    """Before anything is dropped, attention is that of one that sees everything."""
    assert planned([decode(105, (0, 7))], window=20, lead=90) == planned([decode(105, (0, 7))])


def test_prompts_and_decodes_share_alike() -> None:
    """A chunk of a prompt reads the shared prefix in one call with a decoding stream."""
    prompt = Chunk(list(range(200)), 320, ([Span(BlockId(0), 20), Span(BlockId(50), 13)],), 1)
    parts = planned([decode(325, (0, 20), (40, 1)), prompt])
    assert in_place(parts)[0] == (0, 201, 0, 320)


def test_a_long_chunk_reads_squares_of_itself() -> None:
    """Each half of its tiles reads the half before in one call, not tile after tile."""
    parts = planned([Chunk(list(range(1024)), 4096, ([Span(BlockId(0), 320)],), 1)])
    squares = [part for part in in_place(parts) if part[3] > 4096]
    assert squares == [
        (512, 1024, 4096, 4608),
        (768, 1024, 4608, 4864),
        (256, 512, 4096, 4352),
        *((tile, tile + 128, 3968 + tile, 4096 + tile) for tile in (128, 384, 640, 896)),
    ]
    assert in_place(parts)[0] == (0, 1024, 0, 4096)


def test_long_chunks_see_all_that_came_before() -> None:
    """However their tiles are halved, a row sees each slot before it once."""
    chunks = [
        Chunk(list(range(700)), 0, ([Span(BlockId(100), 44)],), 1),
        Chunk(list(range(900)), 320, ([Span(BlockId(0), 20), Span(BlockId(30), 57)],), 1),
        Chunk(list(range(300)), 330, ([Span(BlockId(0), 20), Span(BlockId(90), 20)],), 1),
    ]
    group = LayerGroup((0,), 1, KEY_DIM, KEY_DIM, None)
    step = plan_step(chunks, KVStore(KVLayout((group,), 16, torch.float32), 256, CPU), CPU)
    slots = step.groups[0].slots.index
    seen = torch.zeros(len(slots), 256 * 16)
    for part in step.groups[0].parts:
        _count(part, seen, slots)
    assert seen.max() == 1
    assert torch.equal(seen.sum(1), step.positions[0] + 1.0)


def test_a_single_stream_is_one_call_in_place() -> None:
    """A lone decode over one run, however short, copies nothing and merges nothing."""
    assert in_place(planned([decode(40, (3, 3))])) == [(0, 1, 48, 89)]
    assert len(planned([decode(3000, (3, 200))])) == 1


def test_logits_follow_the_chunks_as_given() -> None:
    """Rows are packed by what they share; logits come in the order of the chunks."""
    chunks = [
        Chunk([1, 2, 3], 0, ([Span(BlockId(100), 1)],), n_logits=2),
        decode(330, (0, 20), (40, 1)),
        Chunk([4, 5], 0, ([Span(BlockId(110), 1)],), n_logits=0),
        Chunk([6, 8], 325, ([Span(BlockId(0), 20), Span(BlockId(60), 1)],), n_logits=2),
    ]
    group = LayerGroup((0,), 1, KEY_DIM, KEY_DIM, None)
    step = plan_step(chunks, KVStore(KVLayout((group,), 16, torch.float32), 256, CPU), CPU)
    assert step.token_ids[0, step.logit_rows].tolist() == [2, 3, 7, 6, 8]
    assert step.token_ids.tolist() == [[1, 2, 3, 7, 6, 8, 4, 5]]
