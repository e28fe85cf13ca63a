"""How running requests grow."""

from __future__ import annotations

import pytest

from prefixcache.errors import PoolExhaustedError, RequestTooLargeError
from prefixcache.index import Lease, Namespace, PrefixCache, Scope, pack
from prefixcache.types import Span
from tests.index.fake_kv import blocks_of
from tests.index.small import NS, cache_of, found, hold, keep


def test_growth_comes_in_portions_while_blocks_are_free() -> None:
    """A growing request takes consecutive blocks ahead of need."""
    cache = cache_of(12, growth_blocks=4)
    lease = cache.acquire(NS, pack([1, 2]))
    assert lease.capacity_tokens == 2
    cache.extend(lease, 3)
    assert lease.capacity_tokens == 10
    cache.extend(lease, 10)
    assert cache.counts().held == 5
    assert lease.spans() == (Span(blocks_of(lease)[0], 5),)


def test_growth_evicts_for_a_whole_portion() -> None:
    """What is cached gives way to a running request's consecutive blocks."""
    cache = cache_of(6, growth_blocks=4)
    keep(cache, 1, 2, 3, 4)
    lease = cache.acquire(NS, pack([9, 9]))
    cache.extend(lease, 3)
    assert lease.capacity_tokens == 10
    assert found(cache, 1, 2, 3, 4, 5) == 2


def test_growth_takes_exactly_what_is_needed_when_others_hold_the_rest() -> None:
    """A portion that would cost another request its room is not taken."""
    cache = cache_of(6, growth_blocks=4)
    cache.acquire(NS, pack([1, 2, 3]))
    lease = cache.acquire(NS, pack([9, 9]))
    cache.extend(lease, 3)
    assert lease.capacity_tokens == 4
    assert cache.counts().free == 2


def test_growth_takes_nothing_that_the_request_can_never_use() -> None:
    """A portion ends where the request must end."""
    cache = cache_of(12, growth_blocks=4)
    lease = cache.acquire(NS, pack([1, 2]))
    cache.extend(lease, 3, most_tokens=5)
    assert lease.capacity_tokens == 6


def test_unused_growth_is_taken_back_before_a_request_is_refused() -> None:
    """The last resort is what others took ahead of need, oldest first, as much as lacks."""
    cache = cache_of(12, growth_blocks=4)
    first, second = (cache.acquire(NS, pack([n])) for n in (1, 2))
    cache.extend(first, 3)
    cache.extend(second, 3)
    assert cache.counts().free == 2
    asked_for = blocks_of(first)[:2]
    third = cache.acquire(NS, pack(range(10, 20)))
    assert third.capacity_tokens == 10
    assert (first.capacity_tokens, second.capacity_tokens) == (4, 10)
    assert blocks_of(first) == asked_for
    cache.check()
    with pytest.raises(PoolExhaustedError):
        cache.acquire(NS, pack(range(30, 40)))
    assert second.capacity_tokens == 10
    cache.check()


def test_a_request_grows_into_its_own_slack_first() -> None:
    """Its own room is never taken from it while it grows."""
    cache = cache_of(6, growth_blocks=4)
    lease = cache.acquire(NS, pack([1, 2]))
    cache.extend(lease, 3)
    before = blocks_of(lease)
    cache.extend(lease, 12)
    assert blocks_of(lease)[:5] == before
    assert lease.capacity_tokens == 12
    cache.check()


def test_growth_takes_the_slack_of_others_not_its_own() -> None:
    """Even where its own is the oldest."""
    cache = cache_of(10, growth_blocks=4)
    first, second = (cache.acquire(NS, pack([n])) for n in (1, 2))
    cache.extend(first, 3)
    cache.extend(second, 3)
    cache.extend(first, 14)
    assert (first.capacity_tokens, second.capacity_tokens) == (14, 6)
    cache.check()


def test_a_refused_extension_leaves_the_lease_as_it_was() -> None:
    """Too large for ever and too large for now alike."""
    cache = cache_of(6, growth_blocks=2)
    other = hold(cache, 1, 2, 3, 4)
    lease = cache.acquire(NS, pack([9, 9]))
    cache.extend(lease, 3)
    before = lease.spans(), lease.n_slack, cache.counts()
    for n_tokens, error in ((13, RequestTooLargeError), (10, PoolExhaustedError)):
        with pytest.raises(error):
            cache.extend(lease, n_tokens)
        assert before == (lease.spans(), lease.n_slack, cache.counts())
    cache.release(other)
    cache.extend(lease, 10)
    cache.check()


def test_writing_into_slack_makes_it_needed() -> None:
    """Committed tokens are not taken back, though nobody asked for their room."""
    cache = cache_of(6, growth_blocks=4)
    lease = cache.acquire(NS, pack([1, 2]))
    cache.extend(lease, 3)
    cache.commit(lease, pack(range(7)))
    cache.acquire(NS, pack([9, 9, 9]))
    with pytest.raises(PoolExhaustedError):
        cache.acquire(NS, pack([8]))
    assert lease.capacity_tokens == 8
    cache.check()


def test_a_growing_request_has_few_nodes() -> None:
    """Thousands of commits make a handful of nodes, as long as nobody else uses them."""
    cache = PrefixCache(pool_blocks=[1100], block_size_tokens=2)
    ids = [7, 7]
    lease = hold(cache, *ids)
    for n in range(1000):
        ids += [n, n]
        cache.extend(lease, len(ids))
        cache.commit(lease, pack(ids))
    assert depth_of(lease) <= 11  # each node is longer than the one below it
    cache.check()
    cache.release(lease)
    cache.check()


def depth_of(lease: Lease) -> int:
    depth, node = 0, lease.node
    while node.parent is not None:
        depth, node = depth + 1, node.parent
    return depth


def test_what_others_use_is_not_merged() -> None:
    """A node where another request ends stays where it is."""
    cache = cache_of(12)
    lease = hold(cache, 1, 2)
    cache.extend(lease, 6)
    other = hold(cache, 1, 2, 3)
    cache.commit(lease, pack([1, 2, 3, 4, 5, 6]))
    cache.check()
    assert other.node is not lease.node
    cache.release(lease)
    cache.check()
    cache.release(other)
    cache.check()
    assert found(cache, 1, 2, 3, 4, 5, 6, 0) == 6


def test_a_request_goes_on_where_its_prefix_ends() -> None:
    """Before any other place that is free, though its blocks lie in two runs then."""
    cache = cache_of(12)
    keep(cache, 1, 2, 3, 4)
    gap = hold(cache, 5, 5, 6, 6, namespace=Namespace(salt="gone"))
    held = hold(cache, 7, 7)
    cache.invalidate(Scope.namespace(gap.namespace))
    cache.release(gap)
    lease = cache.acquire(NS, pack(range(1, 11)))
    assert lease.cached_tokens == 4
    first, beyond = lease.spans()
    assert (first.n_blocks, beyond.n_blocks) == (4, 1)
    assert first.first + 4 == blocks_of(held)[0]


def test_growing_does_not_lower_what_a_prefix_is_worth() -> None:
    """The hits and the priority of a node outlast its becoming one with what is added."""
    cache = cache_of(12)
    lease = hold(cache, 1, 2, 3, 4)
    for _ in range(2):
        cache.release(cache.acquire(NS, pack([1, 2, 3, 4, 0]), priority=7))
    cache.extend(lease, 8)
    cache.commit(lease, pack(range(1, 9)))
    assert depth_of(lease) == 1
    assert (lease.node.n_blocks, lease.node.hits, lease.node.priority) == (4, 2, 7)


def test_a_conversation_alone_stays_one_run() -> None:
    """Turn after turn, its blocks follow each other in the store."""
    cache = PrefixCache(pool_blocks=[200], block_size_tokens=2, growth_blocks=8)
    ids: list[int] = []
    for turn in range(60):
        ids += [turn, turn, turn]
        lease = cache.acquire(NS, pack(ids))
        assert lease.cached_tokens >= len(ids) - 5
        ids += [turn, turn]
        cache.extend(lease, len(ids))
        cache.commit(lease, pack(ids))
        assert len(lease.spans()) == 1
        cache.release(lease)
    cache.check()
