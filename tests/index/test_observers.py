"""What observers are told, and the keys that name blocks in every process."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import xxhash

from prefixcache.index import BlockEvent, Namespace, PrefixCache, Published, Scope, pack, unpack
from tests.index.published import T, U, publish
from tests.index.small import NS, cache_of, hold, keep


@dataclass
class Journal:
    """Writes down what it is told, and keeps which keys are on the device."""

    lines: list[tuple[str, int, list[int]]] = field(default_factory=list)  # start, ids
    on_device: list[bytes] = field(default_factory=list)
    cleared_scopes: list[Scope | Published] = field(default_factory=list)

    def stored(self, event: BlockEvent) -> None:
        self.lines.append(("stored", event.start_block, unpack(event.token_ids)))
        self.on_device.extend(event.keys())

    def removed(self, event: BlockEvent) -> None:
        self.lines.append(("removed", event.start_block, unpack(event.token_ids)))
        keys = event.keys()
        self.on_device = [key for key in self.on_device if key not in keys]

    def cleared(self, scope: Scope | Published) -> None:
        self.cleared_scopes.append(scope)


@pytest.fixture
def cache() -> PrefixCache:
    return cache_of(24)


@pytest.fixture
def journal(cache: PrefixCache) -> Journal:
    journal = Journal()
    cache.subscribe(journal)
    return journal


def keys_of(*prompts: tuple[int, ...], namespace: Namespace = NS) -> list[bytes]:
    """Return the keys of all blocks of prompts, as another cache tells them."""
    cache, journal = cache_of(24), Journal()
    cache.subscribe(journal)
    for ids in prompts:
        keep(cache, *ids, namespace=namespace)
    return journal.on_device


def test_what_comes_and_goes_is_told_with_its_place(cache: PrefixCache, journal: Journal) -> None:
    """What is new of a prompt, and tails before what they depend on."""
    keep(cache, 1, 2, 3, 4)
    keep(cache, 1, 2, 3, 4, 5, 6)
    keep(cache, 1, 2, 7, 8)
    cache.evict(1)
    cache.evict(9)
    assert journal.lines == [
        ("stored", 0, [1, 2, 3, 4]),
        ("stored", 2, [5, 6]),
        ("stored", 1, [7, 8]),
        ("removed", 2, [5, 6]),
        ("removed", 1, [3, 4]),
        ("removed", 1, [7, 8]),
        ("removed", 0, [1, 2]),
    ]
    assert journal.on_device == []


def test_keys_do_not_depend_on_how_the_tree_is_cut() -> None:
    """Stored at once or turn by turn, split or not, equal prefixes have equal keys."""
    whole = keys_of((1, 2, 3, 4, 5, 6))
    assert len(set(whole)) == 3
    assert keys_of((1, 2), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6)) == whole
    assert keys_of((1, 2, 3, 4, 9, 9), (1, 2, 3, 4, 5, 6))[:2] == whole[:2]
    assert keys_of((1, 2, 3, 4, 9, 9), (1, 2, 3, 4, 5, 6))[3:] == whole[2:]


def test_a_key_is_the_digest_of_the_one_before_it_and_the_ids() -> None:
    """16 bytes that anybody can compute on from."""
    first, second = keys_of((1, 2, 3, 4))
    assert second == xxhash.xxh3_128_digest(first + pack([3, 4]))


def test_equal_ids_of_others_have_other_keys(cache: PrefixCache, journal: Journal) -> None:
    """Another namespace, another prefix or another generation is another key."""
    keep(cache, 1, 2)
    keep(cache, 1, 2, namespace=T)
    keep(cache, 3, 4, 1, 2)
    cache.invalidate(Scope.namespace(NS))
    keep(cache, 1, 2)
    assert len(set(journal.on_device)) == 5


def test_an_invalidation_is_told_at_once_and_its_blocks_as_they_go(
    cache: PrefixCache, journal: Journal
) -> None:
    """First the scope, then each block when it is taken down."""
    keep(cache, 1, 2, namespace=T)
    keep(cache, 3, 4, namespace=U)
    cache.invalidate(Scope.tenant("t"))
    assert journal.cleared_scopes == [Scope.tenant("t")]
    assert len(journal.on_device) == 2
    cache.reclaim()
    assert journal.lines[-1] == ("removed", 0, [1, 2])
    assert len(journal.on_device) == 1


def test_a_retired_prompt_is_told(cache: PrefixCache, journal: Journal) -> None:
    """What a tenant stored behind it goes with it, and has keys that name the prompt."""
    published = publish(cache, 1, 2)
    lease = hold(cache, 1, 2, 3, 4, namespace=T)
    cache.release(lease)
    assert journal.lines == [("stored", 0, [1, 2]), ("stored", 1, [3, 4])]
    assert journal.on_device[1] not in keys_of((1, 2, 3, 4), namespace=T)
    cache.prompts.retire(published)
    assert journal.cleared_scopes == [published]
    cache.reclaim()
    assert journal.on_device == []


def test_who_unsubscribed_is_told_no_more(cache: PrefixCache, journal: Journal) -> None:
    """And the others still are; a stranger is ignored."""
    other = Journal()
    cache.subscribe(other)
    cache.unsubscribe(journal)
    cache.unsubscribe(journal)
    keep(cache, 1, 2)
    assert journal.lines == []
    assert other.lines == [("stored", 0, [1, 2])]
