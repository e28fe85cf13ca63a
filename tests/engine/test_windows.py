"""Layers with a sliding window hold what it can see, and answers stay what they are."""

from __future__ import annotations

import pytest
import torch

from prefixcache.engine.index_groups import IndexGroups
from prefixcache.engine.parts import TailPart
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.engine.scheduler import Schedule
from prefixcache.engine.window_room import WindowRoom
from prefixcache.errors import PoolExhaustedError
from prefixcache.index import Namespace, PrefixCache, pack
from prefixcache.kv import KVLayout, KVPools, KVStore, LayerGroup, kv_format
from prefixcache.types import BlockId, Span
from tests.support.models import Bench, oracle, prompt_ids
from tests.support.storm import Storm, seeds

WINDOWED = ("mistral-window", "qwen2-mixed", "gemma2", "gpt-oss")
CPU = torch.device("cpu")
HALF = kv_format("bfloat16", torch.bfloat16)


def gemma_like(window: int = 512) -> KVLayout:
    """Gemma 3 with a billion weights: 22 local layers and 4 global ones, one key head of 256."""
    local = LayerGroup(tuple(n for n in range(26) if n % 6 != 5), 1, 256, 256, window)
    whole = LayerGroup(tuple(n for n in range(26) if n % 6 == 5), 1, 256, 256, None)
    return KVLayout((local, whole), 16, torch.bfloat16)


def divided(layout: KVLayout, memory_bytes: int, longest_tokens: int | None = 32768) -> KVPools:
    return layout.pools_within(
        memory_bytes, longest_tokens=longest_tokens, chunk_tokens=256, least_blocks=3
    )


def test_local_layers_leave_room_for_more_positions() -> None:
    """With five local layers to a global one the same memory has 2.6 times the positions."""
    layout = gemma_like()
    pools = divided(layout, 1 << 30)
    alike = (1 << 30) // (layout.bytes_per_token * 16)
    assert 2.6 < pools.n_blocks / alike < 2.7
    assert pools.group_blocks == (-(-pools.n_blocks * 33 * 16 // 2048), pools.n_blocks)


def test_a_long_prompt_takes_a_sixth_of_its_former_room() -> None:
    """Of 32,768 tokens local layers hold a window and a chunk: 17% of what all layers would."""
    layout = gemma_like()
    local, whole = layout.groups
    seen = local.blocks_seen(16)
    assert seen == 33
    held = whole.bytes_per_token(HALF) * 32768 + local.bytes_per_token(HALF) * (seen * 16 + 256)
    assert round(held / (layout.bytes_per_token * 32768), 2) == 0.17


@pytest.mark.parametrize("memory_bytes", [1 << 20, 1 << 24, 1 << 28, 1 << 30])
@pytest.mark.parametrize("window", [8, 512, 4096, 100_000])
def test_pools_take_the_memory_and_no_more(window: int, memory_bytes: int) -> None:
    """All groups together fit, and one more block of positions would not."""
    layout = gemma_like(window)
    pools = divided(layout, memory_bytes)
    sizes = [group.bytes_per_token(HALF) * 16 for group in layout.groups]
    taken = sum(n * size for n, size in zip(pools.group_blocks, sizes, strict=True))
    assert taken <= memory_bytes < taken + 2 * sum(sizes)
    assert all(n <= pools.n_blocks for n in pools.group_blocks)


@pytest.mark.parametrize("lead", [0, 4, 100])
def test_where_every_layer_lets_go_the_longest_sequence_has_positions(lead: int) -> None:
    """They cost nothing; the pool has room for two leads and windows and for two chunks."""
    group = LayerGroup((0, 1), 1, 64, 64, 512, lead)
    layout = KVLayout((group,), 16, torch.bfloat16)
    memory_bytes = 120 * 16 * group.bytes_per_token(HALF)
    pools = divided(layout, memory_bytes, longest_tokens=100_000)
    assert pools.n_blocks == 100_000 // 16
    assert 2 * (33 + -(-lead // 16) + 16) < pools.group_blocks[0] <= 120
    assert divided(layout, memory_bytes // 2, 100_000).n_blocks <= 60  # too little to let go of any


def test_store_takes_what_its_pools_say() -> None:
    """Each group's tensors have its own number of slots."""
    layout = gemma_like()
    store = KVStore(layout, KVPools(5, (2, 5)), CPU)
    assert [store.layer(layer)[0].shape[1] for layer in (0, 5)] == [2 * 16, 5 * 16]
    assert store.memory_bytes == 16 * 1024 * (2 * 22 + 5 * 4)


def test_windows_wider_than_any_prompt_change_nothing() -> None:
    """Where nothing would be let go, every group has every position and the index no window."""
    pools = divided(gemma_like(4096), 1 << 28, longest_tokens=4000)
    assert len(set(pools.group_blocks)) == 1
    groups = IndexGroups.of(KVStore(gemma_like(), KVPools(4, (4, 4)), CPU))
    assert (groups.windows, groups.n_added) == ((None, None), 0)


@pytest.mark.parametrize("architecture", WINDOWED)
def test_a_long_prompt_holds_its_window(architecture: str) -> None:
    """While it runs, a request holds every position once, and of its windows what they see."""
    bench = Bench(architecture, max_step_tokens=16)
    prompt = prompt_ids(200, seed=1)
    bench.submit("long", prompt, 6)
    bench.step_until(lambda: bench.answers["long"].token_ids)
    groups = IndexGroups.of(bench.loaded.store)
    held = [bench.engine.cache.counts(group).held for group in range(len(groups.windows))]
    for window, n_held in zip(groups.windows, held, strict=True):
        if window is None:
            assert n_held >= 50
        else:
            assert n_held <= 3 + 2 * 4  # what one token sees, and two chunks
    bench.drain()
    answer = bench.answers["long"]
    assert oracle(bench.reference, prompt, 6).is_same(answer.token_ids)


@pytest.mark.parametrize("architecture", WINDOWED)
def test_a_prefix_whose_window_is_gone_is_read_again(architecture: str) -> None:
    """What others needed the room for is no hit, and the answer stays the same."""
    bench = Bench(architecture, max_step_tokens=16)
    prompt = prompt_ids(60, seed=1)
    bench.run(prompt, 4)
    assert bench.matchable(prompt) == 56
    assert bench.matchable([*prompt[:30], 1]) == 28
    room = IndexGroups.of(bench.loaded.store)
    window = next(group for group, width in enumerate(room.windows) if width is not None)
    for number in range(40):
        bench.run(prompt_ids(60, seed=100 + number), 1)
        if bench.matchable([*prompt[:30], 1]) == 0:
            break
    assert bench.engine.cache.counts(window).free == 0
    again = bench.run(prompt[:30] + prompt_ids(9, seed=7), 4)
    assert again.cached_tokens == 0
    expected = oracle(bench.reference, prompt[:30] + prompt_ids(9, seed=7), 4)
    assert expected.is_same(again.token_ids)


@pytest.mark.parametrize("architecture", WINDOWED)
def test_twins_take_what_the_first_one_reads(architecture: str) -> None:
    """Of requests that begin alike one reads, though its windows move on meanwhile."""
    bench = Bench(architecture, max_step_tokens=16)
    stem = prompt_ids(120, seed=1)
    prompts = [stem + prompt_ids(9, seed=number) for number in (2, 3, 4)]
    for number, prompt in enumerate(prompts):
        bench.submit(f"t{number}", prompt, 5)
    bench.drain()
    for number, prompt in enumerate(prompts):
        answer = bench.answers[f"t{number}"]
        assert answer.cached_tokens == (120 if number else 0)
        assert oracle(bench.reference, prompt, 5).is_same(answer.token_ids)


@pytest.mark.parametrize("seed", seeds(12, 0, 5, 6, 11))
def test_no_order_of_events_reads_what_a_window_let_go(seed: int) -> None:
    """In pools of a window's size, with every free block full of NaN, answers are as alone."""
    storm = Storm(
        seed,
        architecture=WINDOWED[seed % 4],
        n_tokens=(150, 300, 600)[seed % 3],
        block_size_tokens=(1, 3, 4, 8)[seed // 2 % 4],
        max_step_tokens=(2, 7, 16, 40)[seed // 3 % 4],
    )
    assert storm.engine._scheduler._windows.is_needed
    storm.survive(30, rate=0.7)


def test_crowded_windows_preempt_and_all_are_served() -> None:
    """Where windows lack room though positions do not, the youngest give way for a while."""
    storm = Storm(
        42,
        preempt_rate=0,
        cancel_rate=0,
        architecture="gpt-oss",
        n_tokens=70,
        block_size_tokens=1,
        max_step_tokens=24,
        max_running_requests=16,
        growth_blocks=0,
        prefix_cache=True,
        speculation="off",
        repeat_rate=0,
    )
    scheduler = storm.engine._scheduler
    fit, by_windows = scheduler._fit_windows, []

    def counted(schedule: Schedule) -> None:
        n_before = scheduler.preemptions_total
        fit(schedule)
        by_windows.append(scheduler.preemptions_total - n_before)

    scheduler._fit_windows = counted  # type: ignore[method-assign]
    storm.survive(60, rate=0.9)
    assert sum(by_windows) > 0


def test_tables_may_begin_behind_position_0() -> None:
    """A table that lacks what the window has passed gives the slots of a whole one."""
    group = LayerGroup((0,), 1, 4, 4, 6)
    store = KVStore(KVLayout((group,), 4, torch.float32), 8, CPU)
    whole = Chunk([1, 2], 13, ([Span(BlockId(7), 2), Span(BlockId(1), 2)],), 1)
    short = Chunk([1, 2], 13, ([Span(BlockId(1), 2)],), 1, first_blocks=(2,))
    read = []
    for chunk in (whole, short):
        step = plan_step([chunk], store, CPU).groups[0]
        assert step.slots.index.tolist() == [9, 10]
        (part,) = step.parts
        assert isinstance(part, TailPart)
        assert part.mask is not None
        read.append((part.slots.index.tolist(), part.mask.bias(1, torch.float32).tolist()))
    assert read[0] == read[1]
    assert read[0][0] == [4, 5, 6, 7, 8, 9, 10]


def test_a_lease_without_room_for_its_window_is_given_back() -> None:
    """Who finds no room for a first token holds nothing afterwards."""
    groups = LayerGroup((0,), 1, 4, 4, None), LayerGroup((1,), 1, 4, 4, 6)
    store = KVStore(KVLayout(groups, 4, torch.float32), KVPools(30, (30, 12)), CPU)
    index = IndexGroups.of(store)
    cache = PrefixCache(pool_blocks=index.pool_blocks, windows=index.windows, block_size_tokens=4)
    room = WindowRoom(cache, index, store, most_running=2)
    namespace = Namespace(model="m", kv_format="f", tenant="t")
    first = cache.acquire(namespace, pack(range(48)))
    cache.slide(first, 0, 48)
    with pytest.raises(PoolExhaustedError):
        room.require_one()
    second = cache.acquire(namespace, pack(range(100, 120)))
    with pytest.raises(PoolExhaustedError):
        room.enter(second)
    assert not second.is_live
    cache.release(first)
    cache.check()
    room.require_one()
