"""News of what is stored and what has gone."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

import pytest
import xxhash

from prefixcache.index import BlockEvent, Namespace, PrefixCache, Published, Scope, pack, unpack
from tests.index.published import T, U, publish
from tests.index.small import hold, keep


class Seen(NamedTuple):
    kind: str
    tenant: str
    start_block: int
    ids: tuple[int, ...]
    parent: bytes
    keys: tuple[bytes, ...]


class Listener:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.cleared_scopes: list[Scope | Published] = []

    def stored(self, event: BlockEvent) -> None:
        self.seen.append(_seen("stored", event))

    def removed(self, event: BlockEvent) -> None:
        self.seen.append(_seen("removed", event))

    def cleared(self, scope: Scope | Published) -> None:
        self.cleared_scopes.append(scope)

    def keys(self, kind: str) -> list[bytes]:
        return [key for seen in self.seen if seen.kind == kind for key in seen.keys]


def _seen(kind: str, event: BlockEvent) -> Seen:
    ids = tuple(unpack(event.token_ids))
    assert event.n_blocks == len(event.keys())
    return Seen(kind, event.tenant, event.start_block, ids, event.parent_key(), event.keys())


def cache_of(n_blocks: int = 24) -> tuple[PrefixCache, Listener]:
    cache = PrefixCache(pool_blocks=[n_blocks], block_size_tokens=2, growth_blocks=0)
    listener = Listener()
    cache.subscribe(listener)
    return cache, listener


def test_each_block_is_told_of_once_when_it_comes_and_once_when_it_goes() -> None:
    """However the tree was split, merged and trimmed in between."""
    cache, listener = cache_of()
    lease = cache.acquire(T, pack(range(8)))
    for n in (2, 5, 8):
        cache.commit(lease, pack(range(n)))
    keep(cache, 0, 1, 2, 3, 9, 9, namespace=T)
    twin = hold(cache, *range(8), namespace=T)
    cache.release(lease)
    cache.release(twin)
    stored = listener.keys("stored")
    assert len(stored) == len(set(stored)) == 5
    assert cache.evict(1) == 1
    assert cache.evict(9) == 4
    assert sorted(listener.keys("removed")) == sorted(stored)
    assert {seen.tenant for seen in listener.seen} == {"t"}


def test_a_key_names_a_block_and_all_that_comes_before_it() -> None:
    """Its parent's key is that of the block before it, whoever stored that and when."""
    cache, listener = cache_of()
    keep(cache, 1, 2, 3, 4, 5, 6, namespace=T)
    keep(cache, 1, 2, 3, 4, 7, 8, 9, 9, namespace=T)
    keep(cache, 1, 2, 7, 8, namespace=T)
    first, second, third = listener.seen
    assert (first.start_block, second.start_block, third.start_block) == (0, 2, 1)
    assert (first.ids, second.ids, third.ids) == ((1, 2, 3, 4, 5, 6), (7, 8, 9, 9), (7, 8))
    assert (second.parent, third.parent) == (first.keys[1], first.keys[0])
    assert len({*first.keys, *second.keys, *third.keys}) == 6
    assert all(len(key) == 16 for key in first.keys)
    assert first.keys[1] == xxhash.xxh3_128_digest(first.keys[0] + pack([3, 4]))


def test_a_key_does_not_depend_on_how_the_tree_is_cut() -> None:
    """Stored at once or turn by turn, behind a node that was split or not."""
    whole = (0, 1, 2, 3, 4, 5)
    paths: list[list[tuple[int, ...]]] = [
        [whole],
        [whole[:2], whole[:4], whole],
        [(0, 1, 2, 3, 9, 9), whole],
    ]
    found = []
    for prompts in paths:
        cache, listener = cache_of()
        for ids in prompts:
            keep(cache, *ids, namespace=T)
        found.append({seen.ids[-1]: seen.keys[-1] for seen in listener.seen}[5])
    assert len(set(found)) == 1


def test_tails_are_told_of_before_what_they_depend_on() -> None:
    """Block after block, as they go."""
    cache, listener = cache_of()
    keep(cache, 1, 2, 3, 4, namespace=T)
    keep(cache, 1, 2, 7, 8, namespace=T)
    while cache.evict(1):
        pass
    removed = [seen for seen in listener.seen if seen.kind == "removed"]
    assert [seen.ids for seen in removed] == [(3, 4), (7, 8), (1, 2)]
    assert [seen.start_block for seen in removed] == [1, 1, 0]


def test_the_tail_of_a_long_edge_is_told_with_its_place() -> None:
    """Not as the blocks that the edge begins with."""
    cache, listener = cache_of()
    keep(cache, 1, 2, 3, 4, 5, 6, 7, 8)
    stored = listener.keys("stored")
    assert cache.evict(1) == 1
    assert cache.evict(2) == 2
    tail, middle = listener.seen[1:]
    assert (tail.start_block, tail.ids) == (3, (7, 8))
    assert (middle.start_block, middle.ids) == (1, (3, 4, 5, 6))
    assert [*middle.keys, *tail.keys] == stored[1:]


def test_a_key_does_not_depend_on_what_had_been_there_before() -> None:
    """What grows again where a tail went has the key that it would have without that."""
    keys = []
    for tails in ([(9, 9)], [(5, 6), (5, 6, 7, 8), (9, 9)]):
        cache, listener = cache_of()
        for tail in tails:
            cache.evict(2 if tail == (9, 9) else 0)
            keep(cache, 1, 2, 3, 4, *tail)
        keys.append(listener.seen[-1].keys[-1])
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    "other",
    [U, Namespace(tenant="t", salt="s"), Namespace(tenant="t", adapter="s"), Namespace(model="t")],
)
def test_keys_of_equal_tokens_differ_between_namespaces(other: Namespace) -> None:
    """What may not be shared has no key in common."""
    cache, listener = cache_of()
    for name in (T, other):
        keep(cache, 1, 2, 3, 4, namespace=name)
    assert len(set(listener.keys("stored"))) == 4


def test_keys_of_equal_tokens_differ_between_generations() -> None:
    """An index elsewhere does not take new blocks for those that were invalidated."""
    cache, listener = cache_of()
    keep(cache, 1, 2, 3, 4, namespace=T)
    cache.invalidate(Scope.tenant("t"))
    assert listener.cleared_scopes == [Scope.tenant("t")]
    keep(cache, 1, 2, 3, 4, namespace=T)
    stored = listener.keys("stored")
    assert len(set(stored)) == 4
    cache.reclaim()
    assert sorted(listener.keys("removed")) == sorted(stored[:2])


def test_a_retired_prompt_is_cleared_and_all_its_blocks_are_removed() -> None:
    """Those that hung from it too, half a block at its end included."""
    cache, listener = cache_of()
    published = publish(cache, 1, 2, 3, 4, 5)
    keep(cache, 1, 2, 3, 4, 5, 6, 7, 8, namespace=T)
    stored = listener.keys("stored")
    assert len(set(stored)) == len(stored) == 5
    cache.prompts.retire(published)
    cache.reclaim()
    assert listener.cleared_scopes == [published]
    assert sorted(listener.keys("removed")) == sorted(stored)


@pytest.mark.parametrize("n_shared", [2, 3, 4, 5])
def test_what_hangs_from_a_prompt_has_the_prompts_block_for_parent(n_shared: int) -> None:
    """When it comes and when it goes, used or not; whoever else has the same there."""
    cache, listener = cache_of()
    prompt, own = (1, 2, 3, 4, 5), (7, 8, 9, 9)
    publish(cache, *prompt)
    (read,) = [seen.keys for seen in listener.seen if seen.ids == (1, 2, 3, 4)]
    for name in (T, U):
        keep(cache, *prompt[:n_shared], *own, namespace=name)
    cache.evict(24)
    begun = [seen for seen in listener.seen if seen.tenant in "tu" and seen.start_block]
    firsts = [seen for seen in begun if seen.start_block == n_shared // 2]
    assert {seen.kind for seen in firsts} == {"stored", "removed"}
    assert {seen.parent for seen in firsts} == {read[n_shared // 2 - 1]}
    assert len({seen.keys[0] for seen in firsts}) == 2


def test_who_does_not_listen_costs_and_hears_nothing() -> None:
    """No key is computed before somebody listens; who stops hears no more."""
    cache, listener = cache_of()
    cache.unsubscribe(listener)
    cache.unsubscribe(listener)
    lease = hold(cache, 1, 2, 3, 4, namespace=T)
    assert lease.node.digest is None
    assert lease.root.digest is None
    cache.release(lease)
    cache.evict(9)
    assert listener.seen == []
    again = Listener()
    cache.subscribe(again)
    keep(cache, 1, 2, namespace=T)
    assert [seen.kind for seen in again.seen] == ["stored"]


_SCRIPT = """
from prefixcache.index import Namespace, PrefixCache, pack
class Listener:
    def stored(self, event): print(event.parent_key().hex(), *[key.hex() for key in event.keys()])
    def removed(self, event): pass
    def cleared(self, scope): pass
cache = PrefixCache(pool_blocks=[9], block_size_tokens=2)
cache.subscribe(Listener())
lease = cache.acquire(Namespace(tenant="t", salt="s"), pack(range(6)))
cache.commit(lease, pack(range(6)))
"""


def test_every_process_computes_the_same_keys() -> None:
    """Whatever its hash seed."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "12345")
    }
    assert len(outputs) == 1
    assert len(outputs.pop().split()) == 4
