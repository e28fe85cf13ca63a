"""What leaves the device comes back from host memory as it was, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prefixcache.control import Invalidation, InvalidationKind
from prefixcache.errors import ConfigError
from tests.engine.test_invariant import ScoredBench
from tests.support.kv import CPU_FORMATS
from tests.support.models import ARCHITECTURES, Bench, oracle, prompt_ids
from tests.support.storm import Storm, poison

PROMPT = prompt_ids(41)
ROOM: dict[str, Any] = {"host_memory_bytes": 1 << 20, "tier_loading": "always"}


def host_tokens(bench: Bench) -> int:
    """Return how many tokens were loaded from host memory until now."""
    return bench.engine.stats().tiers["host"].hit_tokens


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_was_evicted_comes_back_as_it_was(architecture: str) -> None:
    """Its answer is the uncached one, and all whole blocks of its prompt count as cached."""
    bench = Bench(architecture, **ROOM)
    poison(bench)
    first = bench.run(PROMPT)
    bench.engine.cache.evict(10_000)
    assert bench.matchable(PROMPT) == 0
    again = bench.run(PROMPT)
    assert again.cached_tokens == 40
    assert again.token_ids == first.token_ids
    assert oracle(bench.reference, PROMPT, 8).is_same(again.token_ids)
    assert host_tokens(bench) == 40
    assert bench.matchable(PROMPT) == 40


@pytest.mark.parametrize("name", CPU_FORMATS)
def test_every_format_comes_back_bit_for_bit(name: str) -> None:
    """In invariant mode tokens and scores are those that are computed afresh in the format."""
    bench = ScoredBench(invariant=True, kv_format=name, **ROOM)
    poison(bench)
    bench.submit("cold", PROMPT, 8, top_scores=5)
    bench.drain()
    bench.engine.cache.evict(10_000)
    bench.submit("warm", PROMPT, 8, top_scores=5)
    bench.drain()
    assert bench.answers["warm"].cached_tokens == 40
    assert host_tokens(bench) == 40
    assert bench.told["warm"] == bench.told["cold"]


@pytest.mark.parametrize("architecture", ["gemma2", "qwen2-mixed"])
def test_short_prompts_do_not_fill_the_room_of_windows_for_good(architecture: str) -> None:
    """Where a window group's share of the host is full, its oldest copies go for new ones."""
    bench = Bench(architecture, host_memory_bytes=1 << 16, tier_loading="always")
    for seed in range(12):
        bench.run(prompt_ids(9, seed=seed), 1)
        bench.engine.cache.evict(10_000)
    assert bench.run(prompt_ids(9, seed=11), 1).cached_tokens == 8
    assert bench.run(prompt_ids(9, seed=0), 1).cached_tokens == 0


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "mistral-window"])
@pytest.mark.parametrize("is_exact", [True, False])
def test_a_block_that_ends_with_the_prompt_is_loaded_too(
    architecture: str, *, is_exact: bool
) -> None:
    """All but the prompt's last token is, as on the device, unless blocks are found whole alone."""
    bench = Bench(architecture, token_exact_reuse=is_exact, **ROOM)
    poison(bench)
    first = bench.run(PROMPT[:40])
    bench.engine.cache.evict(10_000)
    again = bench.run(PROMPT[:40])
    assert again.cached_tokens == (39 if is_exact else 36)
    assert host_tokens(bench) == again.cached_tokens
    assert again.finished.usage.written_tokens <= 40 - again.cached_tokens
    assert again.token_ids == first.token_ids
    assert oracle(bench.reference, PROMPT[:40], 8).is_same(again.token_ids)
    bench.engine.cache.evict(10_000)
    assert bench.run(PROMPT).cached_tokens == 40


def test_a_tail_comes_back_behind_what_stayed() -> None:
    """The device's part and the host's add up; the next one finds all of it on the device."""
    bench = Bench(**ROOM)
    poison(bench)
    bench.run(PROMPT, 1)
    bench.engine.cache.evict(4)
    assert bench.matchable(PROMPT) == 24
    again = bench.run(PROMPT)
    assert again.cached_tokens == 40
    assert host_tokens(bench) == 16
    assert oracle(bench.reference, PROMPT, 8).is_same(again.token_ids)
    assert bench.run(PROMPT).cached_tokens == 40
    assert host_tokens(bench) == 16


def test_what_comes_back_counts_as_cached_and_not_as_written() -> None:
    """Usage and counters tell of the tokens that were loaded as of any other hit."""
    bench = Bench(**ROOM)
    bench.run(PROMPT[:21], 1)
    bench.engine.cache.evict(10_000)
    usage = bench.run(PROMPT, 1).finished.usage
    assert (usage.cached_tokens, usage.written_tokens) == (20, 20)
    (shown,) = bench.engine.control.inspect(tenant="default").tenants
    assert shown.hit_tokens_total == 20
    bench.engine.cache.evict(10_000)
    bench.run(PROMPT, 1)
    assert bench.engine.stats().misses == {"nothing_stored": 1, "evicted": 1}


def test_what_is_lost_below_the_host_is_computed_again() -> None:
    """A host tier that is too small forgets what was used first; answers stay as they are."""
    bench = Bench(n_blocks=16, host_memory_bytes=16 * 4 * 256, tier_loading="always")
    poison(bench)
    prompts = [prompt_ids(45, seed=seed) for seed in range(6)]
    answers = [bench.run(prompt, 6).token_ids for prompt in prompts]
    for prompt, answer in zip(prompts, answers, strict=True):
        assert bench.run(prompt, 6).token_ids == answer
    assert bench.engine.stats().tiers["host"].used_bytes


def test_what_was_invalidated_does_not_come_back() -> None:
    """Neither for the tenant nor, after the model is invalidated, for anybody."""
    bench = Bench(**ROOM)
    for kind, name in ((InvalidationKind.TENANT, "default"), (InvalidationKind.MODEL, None)):
        bench.run(PROMPT)
        bench.engine.cache.evict(10_000)
        bench.engine.control.invalidate(Invalidation(kind=kind, name=name))
        assert bench.run(PROMPT).cached_tokens == 0


def test_another_tenant_is_served_as_if_nobody_had_been_there() -> None:
    """It computes as many tokens in as many steps, whether or not another one sent the prompt."""
    found = []
    for has_other in (False, True):
        bench = Bench(**ROOM)
        if has_other:
            bench.run(PROMPT, tenant="a")
            bench.engine.cache.evict(10_000)
        before = bench.engine.stats()
        answer = bench.run(PROMPT, tenant="b")
        after = bench.engine.stats()
        computed = after.computed_tokens_total - before.computed_tokens_total
        found.append((answer.cached_tokens, computed, after.steps_total - before.steps_total))
    assert found[0] == found[1] == (0, *found[0][1:])


def test_a_published_prompt_comes_back_for_all() -> None:
    """What was given up of it is loaded, not computed, when somebody begins with it."""
    bench = Bench(**ROOM)
    bench.publish("p", PROMPT[:22], pin=False)
    bench.engine.cache.evict(10_000)
    for tenant in ("a", "b"):
        before = bench.engine.stats().computed_tokens_total
        answer = bench.run(PROMPT, 1, tenant=tenant)
        assert answer.cached_tokens in (20, 22)  # nobody waits for half a block
        assert oracle(bench.reference, PROMPT, 1).is_same(answer.token_ids)
        computed = bench.engine.stats().computed_tokens_total - before
        assert computed <= len(PROMPT) - 20 + 2


def test_nothing_is_loaded_where_that_is_switched_off() -> None:
    """The setting `never` leaves what lies there alone."""
    bench = Bench(host_memory_bytes=1 << 20, tier_loading="never")
    bench.run(PROMPT)
    bench.engine.cache.evict(10_000)
    assert bench.run(PROMPT).cached_tokens == 0
    assert host_tokens(bench) == 0


def test_a_host_tier_without_room_for_a_block_is_refused() -> None:
    """The message says how much it takes."""
    with pytest.raises(ConfigError, match="holds no block"):
        Bench(host_memory_bytes=100)


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_events_brings_back_what_was_not_there(seed: int) -> None:
    """Storms on a small pool and a small host tier change no answer and lose no block."""
    storm = Storm(
        500 + seed, prefix_cache=True, host_memory_bytes=40_000, tier_loading="always", n_tokens=100
    )
    storm.run(40)
    storm.check_end()


def test_a_storm_hits_the_host() -> None:
    """What the storms above prove is not nothing."""
    storm = Storm(
        3,
        prefix_cache=True,
        host_memory_bytes=200_000,
        tier_loading="always",
        n_tokens=100,
        architecture="llama",
        block_size_tokens=4,
        repeat_rate=0.5,
    )
    storm.run(60)
    storm.check_end()
    assert storm.engine.stats().tiers["host"].hit_tokens > 50


class Failing:
    """A method that fails once, in the call after the first `n_whole`, or at its end."""

    def __init__(self, real: Callable[..., Any], n_whole: int, *, after: bool) -> None:
        self.real, self.n_whole, self.after = real, n_whole, after
        self.n_calls = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.n_calls += 1
        is_over = self.n_calls == self.n_whole + 1
        result = None if is_over and not self.after else self.real(*arguments, **named)
        if is_over:
            raise RuntimeError("it fails on purpose")
        return result


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
@pytest.mark.parametrize("n_kept", [0, 6])
@pytest.mark.parametrize("place", ["copy_in", "commit", "count_loaded"])
def test_a_load_that_fails_midway_is_computed(
    monkeypatch: pytest.MonkeyPatch, architecture: str, n_kept: int, place: str
) -> None:
    """Whatever had been made room for or written by then: nobody reads a hole or half a block."""
    bench = Bench(architecture, **ROOM)
    poison(bench)
    first = bench.run(PROMPT)
    bench.engine.cache.evict(10_000)
    if n_kept:
        bench.run(PROMPT[: 4 * n_kept + 1], 1)
    cache, store = bench.engine.cache, bench.loaded.store
    owner = {"copy_in": store, "commit": cache, "count_loaded": cache.copies}[place]
    n_whole = int(place == "copy_in" and len(store.layout.groups) > 1)  # a group is written then
    failing = Failing(getattr(owner, place), n_whole, after=place == "commit")
    monkeypatch.setattr(owner, place, failing)
    bench.submit("again", PROMPT)
    bench.step()
    monkeypatch.undo()
    bench.drain()
    assert failing.n_calls > n_whole
    assert bench.answers["again"].token_ids == first.token_ids
    assert oracle(bench.reference, PROMPT, 8).is_same(first.token_ids)
    assert bench.run(PROMPT, 1).cached_tokens == 40
