"""Pruned state: first and recent tokens are seen, the middle is dropped, the rest stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefixcache.config import EngineConfig, Pruning
from prefixcache.engine.index_groups import IndexGroups
from prefixcache.errors import ConfigError
from prefixcache.tiers.disk import DiskTier
from tests.support.kv import CPU_FORMATS
from tests.support.models import Bench, oracle, prompt_ids
from tests.support.pruned import prune_reference
from tests.support.storm import Storm, poison, seeds

FAMILIES = ("llama", "qwen3", "gpt2", "qwen2-mixed", "gemma2", "gpt-oss")
SMALL: dict[str, Any] = {"kv_prune": "6+13", "max_step_tokens": 16}


def small(architecture: str = "llama", **settings: Any) -> Bench:
    """Return an engine whose pools hold some 100 tokens of a layer that is pruned."""
    bench = Bench(architecture, n_blocks=26, **(SMALL | settings))
    poison(bench)
    return bench


def pruned_group(bench: Bench) -> int:
    """Return the index's group of the layers that are pruned."""
    groups = IndexGroups.of(bench.loaded.store)
    return next(group for group, lead in enumerate(groups.leads) if lead)


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_answers_are_those_of_the_mask(architecture: str, block_size: int) -> None:
    """Uncached, cached and after leaving in the middle, as the plain formula has it."""
    bench = Bench(architecture, kv_prune="6+13", block_size_tokens=block_size, max_step_tokens=11)
    poison(bench)
    prompt = prompt_ids(90, seed=1)
    expected = oracle(bench.reference, prompt, 12)
    assert expected.is_same(bench.run(prompt, 12).token_ids)
    again = bench.run(prompt, 12)
    assert again.cached_tokens == 89 // block_size * block_size
    assert expected.is_same(again.token_ids)
    leaves = prompt[:50] + prompt_ids(20, seed=2)
    assert oracle(bench.reference, leaves, 6).is_same(bench.run(leaves, 6).token_ids)


def test_the_mask_makes_a_difference() -> None:
    """Without it, or with one token less, the same model says something else."""
    prompt = prompt_ids(90, seed=1)
    plain, pruned = Bench(), Bench(kv_prune="6+13")
    assert oracle(plain.reference, prompt, 12).is_same(plain.run(prompt, 12).token_ids)
    answer = pruned.run(prompt, 12).token_ids
    assert not oracle(plain.reference, prompt, 12).is_same(answer)
    prune_reference(plain.reference, "5+13")
    assert not oracle(plain.reference, prompt, 12).is_same(answer)


@pytest.mark.parametrize("chunk", [1, 5, 40])
@pytest.mark.parametrize("setting", ["1+1", "3+40", "30+3", "20+20"])
def test_no_chunk_changes_what_is_seen(setting: str, chunk: int) -> None:
    """However many tokens a step takes, first and recent ones count from position 0."""
    bench = Bench(kv_prune=setting, max_step_tokens=chunk)
    poison(bench)
    prompt = prompt_ids(75, seed=3)
    assert oracle(bench.reference, prompt, 8).is_same(bench.run(prompt, 8).token_ids)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_prompt_of_many_times_the_pool_is_served(architecture: str) -> None:
    """It holds its first tokens, its window and chunks at most, and the answer is right."""
    bench = small(architecture)
    group = pruned_group(bench)
    counts = bench.engine.cache.counts(group)
    room = (counts.free + counts.cached + counts.held) * 4
    prompt = prompt_ids(480, seed=1)
    assert room * 4 < len(prompt) <= bench.engine.info.max_model_tokens - 8
    bench.submit("long", prompt, 8)
    most = 0
    while bench.engine.has_work:
        bench.step()
        most = max(most, bench.engine.cache.counts(group).held)
    assert most <= 2 + 4 + 2 * 4  # the lead, what one token sees of its window, and two chunks
    assert oracle(bench.reference, prompt, 8).is_same(bench.answers["long"].token_ids)
    again = bench.run([*prompt, *bench.answers["long"].token_ids, 1], 4)
    assert again.cached_tokens == 484


def test_a_prefix_whose_middle_is_gone_is_continued_from_its_end_or_its_first_tokens() -> None:
    """Where a prompt leaves in the middle, the match ends with the lead: no less, no more."""
    bench = small()
    prompt = prompt_ids(400, seed=1)
    bench.run(prompt, 1)
    assert bench.matchable([*prompt, 1]) == 400
    leaves = [*prompt[:200], *prompt_ids(9, seed=2)]
    assert bench.matchable(leaves) == 8
    again = bench.run(leaves, 6)
    assert again.cached_tokens == 8
    assert oracle(bench.reference, leaves, 6).is_same(again.token_ids)
    assert bench.matchable(leaves) == 208


@pytest.mark.parametrize("name", CPU_FORMATS)
def test_every_format_can_be_pruned(name: str) -> None:
    """What a long prompt finds of itself gives what it gave, but for what the format rounds."""
    bench = Bench(kv_prune="6+13", kv_format=name, max_step_tokens=16)
    poison(bench)
    prompt = prompt_ids(120, seed=1)
    first = bench.run(prompt, 8)
    again = bench.run(prompt, 8)
    assert again.cached_tokens == 116
    if name == "float32":
        assert first.token_ids == again.token_ids
        assert oracle(bench.reference, prompt, 8).is_same(first.token_ids)
    assert len(again.token_ids) == 8


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_what_left_for_host_memory_comes_back(architecture: str) -> None:
    """First tokens and the last window are loaded; what lies between is not needed."""
    bench = Bench(architecture, host_memory_bytes=1 << 20, tier_loading="always", **SMALL)
    poison(bench)
    prompt = prompt_ids(141, seed=1)
    expected = oracle(bench.reference, prompt, 8)
    bench.run(prompt)
    bench.engine.cache.evict(10_000)
    assert bench.matchable(prompt) == 0
    again = bench.run(prompt)
    assert again.cached_tokens == 140
    assert bench.engine.stats().tiers["host"].hit_tokens == 140
    assert expected.is_same(again.token_ids)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_a_restart_finds_what_was_pruned_alike_and_nothing_else(
    tmp_path: Path, architecture: str
) -> None:
    """Pruned state is another format: neither other numbers nor unpruned engines match it."""
    prompt = prompt_ids(141, seed=1)
    found = []
    for setting in ("6+13", "6+13", "6+14", None):
        disk = DiskTier(tmp_path, max_bytes=1 << 24)
        settings = SMALL | {"kv_prune": setting, "tier_loading": "always"}
        bench = Bench(architecture, lasting={"disk": disk}, **settings)
        poison(bench)
        answer = bench.run(prompt)
        assert bench.engine.flush(30)
        bench.engine.close()
        assert oracle(bench.reference, prompt, 8).is_same(answer.token_ids)
        found.append(answer.cached_tokens)
    assert found == [0, 140, 0, 0]


def test_twins_and_speculation_see_the_same() -> None:
    """Requests that begin alike read once, and drafts change nothing."""
    bench = Bench(kv_prune="6+13", max_step_tokens=16, speculation="auto")
    poison(bench)
    stem = prompt_ids(120, seed=1)
    prompts = [stem + prompt_ids(9, seed=number) for number in (2, 3, 4)]
    for number, prompt in enumerate(prompts):
        bench.submit(f"t{number}", prompt, 12)
    bench.drain()
    for number, prompt in enumerate(prompts):
        answer = bench.answers[f"t{number}"]
        assert answer.cached_tokens == (120 if number else 0)
        assert oracle(bench.reference, prompt, 12).is_same(answer.token_ids)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_a_published_prompt_is_pruned_too(architecture: str) -> None:
    """It is read once for all, and tenants go on from its end."""
    bench = Bench(architecture, **SMALL)
    poison(bench)
    prompt = prompt_ids(100, seed=1)
    assert not bench.publish("p", prompt).refusal
    answer = bench.run([*prompt, 7, 8, 9], 8)
    assert answer.cached_tokens == 100
    assert oracle(bench.reference, [*prompt, 7, 8, 9], 8).is_same(answer.token_ids)


@pytest.mark.parametrize("seed", seeds(12, 0, 4, 7))
def test_no_order_of_events_reads_what_was_dropped(seed: int) -> None:
    """In small pools, with every free block full of NaN, answers are those of the mask alone."""
    storm = Storm(
        seed,
        architecture=("llama", "gemma2", "gpt2", "gpt-oss")[seed % 4],
        kv_prune=("3+9", "1+4", "10+7")[seed % 3],
        n_tokens=(150, 300)[seed % 2],
        block_size_tokens=(1, 3, 4)[seed // 2 % 3],
        max_step_tokens=(2, 7, 16, 40)[seed // 3 % 4],
    )
    assert storm.engine._scheduler._windows.is_needed
    storm.survive(30, rate=0.7)


@pytest.mark.parametrize("setting", ["", "4", "4+", "0+8", "4+0", "4+8+1", "a+b", "-1+8", "4 + 8"])
def test_what_is_no_pruning_is_refused(setting: str) -> None:
    """Two numbers from 1 on."""
    with pytest.raises(ConfigError, match="two numbers"):
        EngineConfig(kv_prune=setting)


def test_a_setting_is_read() -> None:
    """First tokens first."""
    assert EngineConfig(kv_prune="4+1024").pruning == Pruning(4, 1024)
    assert EngineConfig().pruning is None


def test_invariant_mode_is_not_pruned() -> None:
    """It says why."""
    with pytest.raises(ConfigError, match="whole segments"):
        EngineConfig(kv_prune="4+1024", invariant=True)


def test_a_model_without_anything_to_prune_is_refused() -> None:
    """Where each layer has a window there is nothing that pruning could drop."""
    with pytest.raises(ConfigError, match="window of its own"):
        Bench("mistral-window", kv_prune="4+1024")
