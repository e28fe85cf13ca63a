"""Trees that are deep or wide."""

from __future__ import annotations

from prefixcache.index import Namespace, PrefixCache, Scope, pack

NS = Namespace()
DEPTH = 5000


def chain(retained_blocks: int | None = None) -> PrefixCache:
    """Return a cache with 5,000 nested nodes: at each block some other prompt branches off."""
    cache = PrefixCache(
        pool_blocks=[2 * DEPTH + 10],
        block_size_tokens=1,
        growth_blocks=0,
        token_exact_reuse=False,
        retained_blocks=retained_blocks,
    )
    whole = pack(range(DEPTH))
    lease = cache.acquire(NS, whole)
    cache.commit(lease, whole)
    for n in range(DEPTH - 1, 0, -1):
        branch = whole[: 4 * n] + pack([DEPTH + n])
        other = cache.acquire(NS, branch)
        cache.commit(other, branch)
        cache.release(other)
    cache.release(lease)
    return cache


def test_a_chain_of_5000_nodes_can_be_matched_pinned_checked_and_evicted() -> None:
    """No operation recurses, and none loses a block."""
    cache = chain()
    whole = pack(range(DEPTH))
    assert cache.match_length(NS, whole) == DEPTH - 1
    cache.check()
    lease = cache.acquire(NS, whole)
    assert lease.cached_tokens == DEPTH - 1
    assert cache.evict(2 * DEPTH) == DEPTH
    cache.release(lease)
    assert cache.evict(2 * DEPTH) == DEPTH - 1
    cache.check()
    assert cache.counts().free == 2 * DEPTH + 10


def test_a_prompt_extended_5000_times_loses_its_tail_first() -> None:
    """Half of the blocks evicted is the second half of the prompt."""
    cache = PrefixCache(pool_blocks=[DEPTH], block_size_tokens=1, token_exact_reuse=False)
    whole = pack(range(DEPTH))
    for n in range(1, DEPTH + 1):
        prompt = whole[: 4 * n]
        lease = cache.acquire(NS, prompt)
        assert lease.cached_tokens == n - 1
        cache.commit(lease, prompt)
        cache.release(lease)
    assert cache.counts().cached == DEPTH
    assert cache.evict(DEPTH // 2) == DEPTH // 2
    assert cache.match_length(NS, whole) == DEPTH // 2
    cache.check()


def test_thousands_of_siblings_are_told_apart_and_evicted_in_order() -> None:
    """A node may have any number of children."""
    cache = PrefixCache(pool_blocks=[6000], block_size_tokens=2)
    for n in range(5000):
        lease = cache.acquire(NS, pack([n, 0]))
        cache.commit(lease, pack([n, 0]))
        cache.release(lease)
    assert all(cache.match_length(NS, pack([n, 0, 0])) == 2 for n in range(5000))
    assert cache.match_length(NS, pack([77, 5, 5])) == 1
    assert cache.evict(4000) == 4000
    assert [cache.match_length(NS, pack([n, 0, 0])) for n in (0, 3999, 4000, 4999)] == [0, 0, 2, 2]
    cache.check()


def test_a_deep_tree_is_shown_retained_and_taken_down_without_recursion() -> None:
    """A snapshot, a retention, an invalidation and keys of all 5,000 levels."""
    cache = chain(retained_blocks=2 * DEPTH)
    snapshot = cache.snapshot(max_nodes=3 * DEPTH)
    assert snapshot.is_complete
    assert sum(len(tree.nodes) for tree in snapshot.trees) == 2 * DEPTH - 1
    lease = cache.acquire(NS, pack(range(DEPTH)))
    assert cache.retain(lease, DEPTH, seconds=100) == DEPTH - 1
    cache.release(lease)
    assert cache.evict(DEPTH) == DEPTH
    cache.check()
    cache.invalidate(Scope.model("default"))
    assert cache.reclaim() == DEPTH - 1
    cache.check()
