"""Engines that share a real server of Redis or Valkey find what the others computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from prefixcache.control import Invalidation, InvalidationKind
from prefixcache.tiers.remote import RemoteTier
from tests.support.models import Bench, oracle, prompt_ids
from tests.support.stores import Store, store
from tests.support.storm import Storm, poison

PROMPT = prompt_ids(41)
New = Callable[..., Bench]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have requests wait for a tier whose thread gets little of a busy machine."""
    monkeypatch.setattr("prefixcache.engine.tiers.ahead._LEAST_WAIT_SECONDS", 10.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One for all tests of this file."""
    with store(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def client(server: Store) -> Iterator[redis.Redis]:
    """A look at the server, emptied."""
    with server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def new(server: Store, client: redis.Redis) -> Iterator[New]:
    """Makes engines that share it, each with a connection of its own."""
    del client

    def make(*, url: str = server.url, max_value_bytes: int = 4096, **settings: Any) -> Bench:
        tier = RemoteTier(url, max_value_bytes=max_value_bytes, timeout_seconds=5)
        bench = Bench(lasting={"remote": tier}, tier_loading="always", **settings)
        poison(bench)
        ending.callback(bench.engine.close)
        return bench

    with ExitStack() as ending:
        yield make


def ask(bench: Bench, **options: Any) -> tuple[int, int]:
    """Ask for the prompt, and return its cached tokens and how many of all came from the server."""
    before = bench.engine.stats().tiers["remote"].hit_tokens
    answer = bench.run(PROMPT, **options)
    assert oracle(bench.reference, PROMPT, 8).is_same(answer.token_ids)
    assert bench.engine.flush(10)
    assert answer.cached_tokens is not None
    return answer.cached_tokens, bench.engine.stats().tiers["remote"].hit_tokens - before


def test_one_engine_finds_what_another_computed(new: New, server: Store) -> None:
    """Over a socket and over TCP, with values of other sizes, while both live."""
    first, second = new(), new(url=server.tcp_url, max_value_bytes=1 << 20)
    assert ask(first) == (0, 0)
    assert ask(second) == (40, 40)
    assert ask(second) == (40, 0)


def test_another_tenant_finds_nothing_there(new: New) -> None:
    """Nor does another salt; the tenant itself does, in any engine."""
    ask(new(), tenant="a")
    other = new()
    assert ask(other, tenant="b") == (0, 0)
    assert ask(other, tenant="a", salt="s") == (0, 0)
    assert ask(other, tenant="a") == (40, 40)


def test_a_published_prompt_is_there_for_all(new: New) -> None:
    """The second engine reads it from the server; both tenants have it, and their own behind it."""
    first, second = new(), new()
    first.publish("p", PROMPT[:20])
    assert ask(first, tenant="a") == (20, 0)
    computed = first.engine.stats().computed_tokens_total
    assert computed > 20
    second.publish("p", PROMPT[:20])
    assert second.engine.stats().computed_tokens_total < 20
    assert ask(second, tenant="b") == (20, 0)
    assert ask(second, tenant="a") == (40, 20)


@pytest.mark.parametrize("kind", [InvalidationKind.TENANT, InvalidationKind.EVERYTHING])
def test_what_one_invalidates_is_gone_for_the_other(new: New, kind: InvalidationKind) -> None:
    """In the moment that the server knows of it; what is computed afterwards is shared again."""
    first, second = new(), new()
    ask(first)
    name = "default" if kind is InvalidationKind.TENANT else None
    first.engine.control.invalidate(Invalidation(kind=kind, name=name))
    assert first.engine.flush(10)
    assert ask(second) == (0, 0)
    assert ask(first) == (40, 40)


def test_an_engine_of_other_weights_finds_nothing(new: New) -> None:
    """Weights are part of the name."""
    ask(new())
    assert ask(new(block_size_tokens=8)) == (0, 0)
    assert ask(new(architecture="qwen3")) == (0, 0)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt-oss"])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_pruned_prefixes_are_shared_under_one_setting(
    new: New, server: Store, client: redis.Redis, architecture: str, block_size: int
) -> None:
    """In small pools, values whole or in pieces; other settings, and none, find nothing of it."""
    prompt = prompt_ids(141, seed=1)
    cached = []
    small = {"n_blocks": max(104 // block_size, 26), "max_step_tokens": 16}
    for setting, value_bytes in (("6+13", 1 << 20), ("6+13", 1024), ("6+14", 4096), (None, 4096)):
        bench = new(
            architecture=architecture,
            block_size_tokens=block_size,
            max_value_bytes=value_bytes,
            kv_prune=setting,
            **(small if setting else {}),
        )
        answer = bench.run(prompt)
        assert oracle(bench.reference, prompt, 8).is_same(answer.token_ids)
        assert bench.engine.flush(10)
        cached.append(answer.cached_tokens)
    assert cached == [0, 140 // block_size * block_size, 0, 0]


def test_a_pruned_prompt_goes_on_from_the_server(new: New) -> None:
    """A longer one finds its end there; one that leaves it in the middle computes what it lacks."""
    settings: dict[str, Any] = {"kv_prune": "6+13", "n_blocks": 26, "max_step_tokens": 16}
    prompt = prompt_ids(141, seed=1)
    first = new(**settings)
    first.run(prompt, 1)
    assert first.engine.flush(10)
    for rest, least in ((prompt_ids(30, seed=2), 140), (None, 0)):
        other = prompt + rest if rest else prompt[:70] + prompt_ids(20, seed=3)
        second = new(**settings)
        answer = second.run(other)
        assert oracle(second.reference, other, 8).is_same(answer.token_ids)
        assert answer.cached_tokens is not None
        assert answer.cached_tokens >= least
        second.engine.cache.check()


@pytest.mark.parametrize("seed", range(3))
def test_storms_over_a_server_read_nothing_that_was_dropped(server: Store, seed: int) -> None:
    """With pruning, host memory and small values, answers are those of the mask alone."""
    for _ in range(2):  # the second one finds what the first one has left
        storm = Storm(
            seed,
            architecture=("llama", "gemma2", "gpt-oss")[seed],
            kv_prune=("3+9", "1+4", "10+7")[seed],
            n_tokens=150,
            block_size_tokens=(4, 1, 3)[seed],
            max_step_tokens=16,
            host_memory_bytes=40_000,
            tier_loading="always",
            prefix_cache=True,
            lasting={"remote": RemoteTier(server.url, max_value_bytes=2048, timeout_seconds=5)},
        )
        storm.survive(25, rate=0.7)
        storm.engine.close()
    assert storm.engine.stats().tiers["remote"].hit_tokens > 0


def test_a_server_that_hangs_costs_no_request(
    new: New, server: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it longer than a moment; what it was asked for is computed."""
    monkeypatch.setattr("prefixcache.engine.tiers.ahead._LEAST_WAIT_SECONDS", 0.3)
    monkeypatch.setattr("prefixcache.engine.tiers.ahead.LONGEST_WAIT_SECONDS", 0.3)
    first, second = new(), new(url=server.tcp_url)
    ask(first)
    with server.hanging():
        answer = second.run(PROMPT)
    assert answer.cached_tokens == 0
    assert oracle(second.reference, PROMPT, 8).is_same(answer.token_ids)
