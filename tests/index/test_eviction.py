"""What makes room, in which order, and what never does."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

import pytest

from prefixcache.index import BlockEvent, Lease, LruPolicy, PrefixCache, pack
from prefixcache.index.entry import Entry
from prefixcache.index.nodes import Node
from prefixcache.index.policies import POLICY_NAMES, TtlPolicy, make_policy
from prefixcache.types import PoolCounts
from tests.index.fake_kv import blocks_of
from tests.index.small import NS, cache_of, found, hold, keep


class Attic:
    """A lower tier that takes everything."""

    def demote(self, event: BlockEvent) -> Hashable:
        return object()

    def forget(self, handle: Hashable) -> None:
        pass


def test_a_matched_path_does_not_make_room_for_its_own_request() -> None:
    """What a request reuses is not evicted to hold the rest of it."""
    cache = cache_of(5)
    keep(cache, 1, 2, 3, 4)
    keep(cache, 5, 6, 7, 8)
    lease = cache.acquire(NS, pack([1, 2, 3, 4, 9, 9, 9, 9]))
    assert lease.cached_tokens == 4
    assert found(cache, 1, 2, 3, 4, 0) == 4
    assert found(cache, 5, 6, 7, 8, 0) == 2
    cache.check()


def test_leased_blocks_survive_any_pressure() -> None:
    """While a lease lives, its blocks are never handed to another prompt."""
    cache = cache_of(6)
    lease = hold(cache, 1, 1, 2, 2, 3)
    for n in range(3, 60):
        other = hold(cache, n, n, n, n)
        assert not set(blocks_of(other)) & set(blocks_of(lease))
        cache.release(other)
    assert cache.evict(6) == 3
    assert found(cache, 1, 1, 2, 2, 3) == 4
    assert cache.counts() == PoolCounts(free=3, cached=0, held=3)


def test_only_the_matched_part_of_an_edge_is_pinned() -> None:
    """The rest of a long edge can be given up while a request uses its beginning."""
    cache = cache_of(12)
    keep(cache, *range(8))
    lease = cache.acquire(NS, pack([0, 1, 2, 3, 9]))
    assert cache.counts() == PoolCounts(free=7, cached=2, held=3)
    assert cache.evict(12) == 2
    keep(cache, 0, 1, 2, 3, 8, 8)
    cache.release(lease)
    assert cache.evict(12) == 3
    assert cache.counts().free == 12


def test_eviction_takes_the_longest_unused_first() -> None:
    """A look-up does not count as use, a request does."""
    cache = cache_of()
    for n in (1, 2, 3):
        keep(cache, n, n)
    keep(cache, 1, 1, 1)
    found(cache, 2, 2, 2)
    assert cache.evict(1) == 1
    assert [found(cache, n, n, n) for n in (1, 2, 3)] == [2, 0, 2]
    assert cache.evict(1) == 1
    assert [found(cache, n, n, n) for n in (1, 2, 3)] == [2, 0, 0]


def test_eviction_takes_tails_before_what_they_build_on() -> None:
    """Block by block from the end, and a parent only after its last child."""
    cache = cache_of()
    keep(cache, 1, 2, 3, 4, 5, 6)
    keep(cache, 1, 2, 3, 4, 7, 8)
    left = []
    while cache.evict(1):
        cache.check()
        left.append([found(cache, 1, 2, 3, 4, end, end + 1, 0) for end in (5, 7)])
    assert left == [[4, 6], [4, 4], [2, 2], [0, 0]]


def test_what_is_left_of_an_edge_keeps_its_blocks() -> None:
    """The blocks that go are those of the last tokens, and no others."""
    cache = cache_of()
    lease = hold(cache, 1, 2, 3, 4, 5, 6, 7, 8)
    before = blocks_of(lease)
    cache.release(lease)
    assert cache.evict(1) == 1
    again = cache.acquire(NS, pack([1, 2, 3, 4, 5, 6, 7, 8]))
    assert again.cached_tokens == 6
    assert blocks_of(again)[:3] == before[:3]
    cache.check()


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize("lower_tier", [None, Attic()])
def test_every_policy_gives_all_of_a_tree_in_the_end(name: str, lower_tier: Attic | None) -> None:
    """A node's turn comes when what was below it has gone, for good or to a lower tier."""
    cache = PrefixCache(
        pool_blocks=[12],
        block_size_tokens=2,
        policy=partial(make_policy, name),
        lower_tier=lower_tier,
    )
    keep(cache, 1, 2, 3, 4, 5, 6)
    keep(cache, 1, 2, 3, 4, 7, 8, 9, 9)
    keep(cache, 1, 2, 0, 0)
    assert cache.counts().cached == 6
    assert cache.evict(12) == 6
    cache.check()


def test_what_was_idle_too_long_goes_all_at_once() -> None:
    """Every prefix that is overdue, and none that is not."""
    now = [0.0]
    cache = PrefixCache(
        pool_blocks=[12],
        block_size_tokens=2,
        policy=partial(TtlPolicy, idle_ttl_seconds=10),
        clock=lambda: now[0],
    )
    for n in (1, 2, 3):
        keep(cache, n, n, n, n)
    now[0] = 5
    keep(cache, 4, 4)
    now[0] = 11
    assert cache.expire() == 6
    assert cache.counts().cached == 1
    cache.check()


def test_the_rest_of_a_matched_edge_makes_room_for_the_request() -> None:
    """Only what it reuses stays: no request is refused for the tail of an edge it leaves."""
    cache = cache_of(5)
    keep(cache, *range(10))
    lease = cache.acquire(NS, pack([0, 1, 9, 9, 8, 8, 7, 7, 6, 6]))
    assert lease.cached_tokens == 2
    assert cache.counts() == PoolCounts(free=0, cached=0, held=5)


def test_a_use_counts_for_all_that_was_matched() -> None:
    """Hits and the highest priority, up to the first token and no deeper than the match."""
    cache = cache_of(12)
    keep(cache, 1, 2, 3, 4, 5, 6)
    keep(cache, 1, 2, 7, 8)
    for priority in (3, 1):
        cache.release(cache.acquire(NS, pack([1, 2, 3, 4, 0]), priority=priority))
    lease = cache.acquire(NS, pack([1, 2, 3, 4, 5, 6, 0]))
    tail, middle, head = path_of(lease)
    assert [node.hits for node in (tail, middle, head)] == [1, 3, 4]
    assert [node.priority for node in (tail, middle, head)] == [0, 3, 3]


def test_a_split_leaves_nothing_worth_less_than_what_is_below_it() -> None:
    """Policies are promised that; both halves were used when the whole was."""
    now = [0.0]
    cache = PrefixCache(
        pool_blocks=[12], block_size_tokens=2, token_exact_reuse=False, clock=lambda: now[0]
    )
    keep(cache, *range(8))
    now[0] = 5
    cache.release(cache.acquire(NS, pack(range(9)), priority=3))
    before = hold(cache, *range(9))
    now[0] = 9
    middle = hold(cache, 0, 1, 2, 3, 9, 9)
    lower, upper = path_of(before)
    assert (lower.n_blocks, upper.n_blocks) == (2, 2)
    assert (lower.hits, lower.priority, lower.last_used) == (2, 3, 5)
    assert (upper.hits, upper.priority, upper.last_used) == (3, 3, 5)
    cache.release(middle)
    cache.release(before)
    cache.check()


def path_of(lease: Lease) -> list[Node]:
    """Return the nodes that a request stored or matched, the deepest first."""
    path, node = [], lease.node
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path


def test_eviction_of_more_than_there_is_gives_what_there_is() -> None:
    """The answer tells how much went."""
    cache = cache_of()
    assert cache.evict(3) == 0
    keep(cache, 1, 2, 3, 4)
    assert cache.evict(100) == 2
    assert cache.stats().evicted_blocks == 2


def test_room_is_made_only_as_far_as_it_is_needed() -> None:
    """A request evicts what it lacks and no block more."""
    cache = cache_of(6)
    keep(cache, *range(10))
    lease = cache.acquire(NS, pack([50, 51, 52, 53, 54]))
    assert lease.capacity_tokens == 6
    assert cache.counts() == PoolCounts(free=0, cached=3, held=3)


class Listing(LruPolicy):
    """Remembers which entries are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: set[Entry] = set()

    def add(self, entry: Entry) -> None:
        super().add(entry)
        self.listed.add(entry)

    def discard(self, entry: Entry) -> None:
        super().discard(entry)
        self.listed.discard(entry)

    def lengths(self) -> list[int]:
        return sorted(entry.n_blocks for entry in self.listed)


def test_a_policy_knows_the_length_of_each_entry() -> None:
    """Also after one was split or lost its tail."""
    policy = Listing()
    cache = PrefixCache(
        pool_blocks=[20], block_size_tokens=2, token_exact_reuse=False, policy=lambda: policy
    )
    keep(cache, *range(10))
    assert policy.lengths() == [5]
    lease = hold(cache, 0, 1, 2, 3, 9)
    assert policy.lengths() == [3]
    cache.evict(1)
    assert policy.lengths() == [2]
    cache.release(lease)
    assert policy.lengths() == [2, 2]
    cache.evict(2)
    assert policy.lengths() == [2]
    assert found(cache, *range(10)) == 4
