"""Adapters and weights that change: what lasting tiers have of them is found, or gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prefixcache.control import Invalidation, InvalidationKind
from tests.engine.test_adapters import PROMPT, Adapted
from tests.engine.test_reloading import Server
from tests.support.adapters import write_adapter
from tests.support.architectures import tiny_model
from tests.support.models import Bench
from tests.support.tiers import MemoryTier

FOUND = 36  # of PROMPT: its whole blocks but the last token


class Fleet:
    """Engines with the adapters "one" and "two", one after the other, that share a tier."""

    def __init__(self, folder: Path) -> None:
        self.tier = MemoryTier()
        self.benches: list[Adapted] = []
        self._folder = folder

    def new(self) -> Adapted:
        bench = Adapted(self._folder, lasting={"disk": self.tier}, tier_loading="always")
        self.benches.append(bench)
        return bench


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have requests wait for a tier whose thread gets little of a busy machine."""
    monkeypatch.setattr("prefixcache.engine.tiers.ahead._LEAST_WAIT_SECONDS", 10.0)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    for bench in made.benches:
        bench.engine.close()


def cached(bench: Adapted, adapter: str | None) -> int | None:
    """Ask under an adapter, and return the cached tokens of an answer that was right."""
    answer = bench.run(PROMPT, adapter=adapter)
    assert bench.is_right(adapter, PROMPT, answer.token_ids)
    settle(bench)
    return answer.cached_tokens


def settle(bench: Bench) -> None:
    assert bench.engine.flush(10)


def test_an_adapters_prefixes_outlive_the_process(fleet: Fleet) -> None:
    """Under the same weights, whatever the load is called, and under no other ones."""
    old = fleet.new()
    for adapter in (None, "one"):
        cached(old, adapter)
    new = fleet.new()
    assert [cached(new, adapter) for adapter in (None, "one", "two")] == [FOUND, FOUND, 0]


def test_the_same_weights_by_another_name_are_found(fleet: Fleet, tmp_path: Path) -> None:
    """What the weights are counts, not what requests call them."""
    cached(fleet.new(), "one")
    new = fleet.new()
    new.put("renamed", seed=1)
    assert cached(new, "renamed") == FOUND
    new.put("renamed", seed=2)  # which is "two"
    assert cached(new, "renamed") == 0


def test_an_unloaded_adapter_is_gone_from_the_tier(fleet: Fleet) -> None:
    """Loaded again it finds nothing of before, here or in the next process; others' stays."""
    old = fleet.new()
    for adapter in (None, "one", "two"):
        cached(old, adapter)
    old.engine.unload_adapter("one")
    settle(old)
    assert {r.namespace.adapter is None for r in fleet.tier.records.values()} == {True, False}
    old.put("one", seed=1)
    assert [cached(old, adapter) for adapter in (None, "one", "two")] == [FOUND, 0, FOUND]
    assert cached(fleet.new(), "one") == FOUND  # what was computed since


def test_an_adapter_that_is_replaced_takes_its_blocks_along(fleet: Fleet) -> None:
    """A load in the place of another: its own weights find nothing, nor do the old ones later."""
    old = fleet.new()
    cached(old, "one")
    old.put("one", seed=7)
    settle(old)
    assert not fleet.tier.records
    assert cached(old, "one") == 0
    new = fleet.new()
    assert cached(new, "one") == 0  # the weights of before
    new.put("one", seed=7)
    assert cached(new, "one") == FOUND


def test_an_invalidated_adapter_is_gone_from_the_tier(fleet: Fleet) -> None:
    """Of all processes, and it alone."""
    old = fleet.new()
    for adapter in ("one", "two"):
        cached(old, adapter)
    old.engine.control.invalidate(Invalidation(kind=InvalidationKind.ADAPTER, name="one"))
    settle(old)
    new = fleet.new()
    assert [cached(new, adapter) for adapter in ("one", "two")] == [0, FOUND]


def served(tmp_path: Path) -> Server:
    """Return a server with the first weights, over the folder of a disk tier."""
    return Server(tmp_path / "model", disk=str(tmp_path / "disk"), tier_loading="always")


def found(server: Server, name: str, adapter: str | None = None) -> int:
    """Ask, and return the cached tokens."""
    server.run(name, PROMPT, adapter=adapter)
    assert server.engine.flush(10)
    return server.cached(name)


@pytest.mark.parametrize("is_changed", [True, False])
def test_a_reload_leaves_nothing_to_match(tmp_path: Path, is_changed: bool) -> None:
    """On the disk either, with other weights or the same; what is computed then is kept."""
    server = served(tmp_path)
    assert [found(server, "old"), found(server, "hit")] == [0, FOUND]
    if is_changed:
        server.reload()
    else:
        server.engine.reload()
    server.drain()
    assert [found(server, "new"), found(server, "again")] == [0, FOUND]
    server.engine.close()
    after = served(tmp_path)  # with the first weights
    assert found(after, "restarted") == (0 if is_changed else FOUND)
    after.engine.close()


def test_a_restart_with_the_same_weights_finds_all(tmp_path: Path) -> None:
    """The model's own prefixes and its adapters', with no reload between."""
    folder = write_adapter(tmp_path / "adapter", tiny_model("llama"))
    counts = []
    for _ in range(2):
        server = served(tmp_path)
        server.engine.load_adapter("a", str(folder))
        counts.append([found(server, "base"), found(server, "adapted", "a")])
        server.engine.close()
    assert counts == [[0, 0], [FOUND, FOUND]]


def test_an_adapter_finds_nothing_of_before_a_reload(tmp_path: Path) -> None:
    """It is a load of its own then, under its old digest: what was stored under that is gone."""
    folder = write_adapter(tmp_path / "adapter", tiny_model("llama"))
    server = served(tmp_path)
    server.engine.load_adapter("a", str(folder))
    assert found(server, "old", "a") == 0
    server.engine.reload()
    server.drain()
    assert [found(server, "new", "a"), found(server, "again", "a")] == [0, FOUND]
    server.engine.close()
