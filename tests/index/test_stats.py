"""The counters that an operator sees."""

from __future__ import annotations

from prefixcache.index import LookupStats, MissReason, NamespaceStats, Scope, pack
from tests.index.published import T, U
from tests.index.small import NS, cache_of, keep


def test_a_namespace_has_the_counters_of_its_present_tree() -> None:
    """Look-ups that read, by what stood in the way; an invalidation starts them anew."""
    cache = cache_of()
    keep(cache, 1, 2, 3, 4)
    keep(cache, 1, 2, 3, 4, 5)
    cache.release(cache.acquire(NS, pack([1, 2]), read=False))
    keep(cache, 1, 2, namespace=T)
    assert {stats.namespace for stats in cache.namespace_stats()} == {NS, T}
    assert cache.namespace_stats()[0] == NamespaceStats(
        namespace=NS,
        lookups=LookupStats(
            requests=2, tokens=9, hit_tokens=4, misses={MissReason.NOTHING_STORED: 1}
        ),
    )
    cache.invalidate(Scope.namespace(NS))
    assert [stats.namespace for stats in cache.namespace_stats()] == [T]


def test_counters_of_trees_that_have_gone_are_kept() -> None:
    """For the tenant, and for all."""
    cache = cache_of()
    keep(cache, 1, 2, namespace=T)
    keep(cache, 1, 2, 3, 4, namespace=U)
    cache.evict(9)
    lookups = cache.stats().lookups
    assert (lookups.requests, lookups.tokens) == (2, 6)
    assert cache.tenant_stats("t").lookups.requests == 1
    assert cache.tenant_stats("t").evicted_blocks == 1
    assert cache.tenant_stats("never seen").lookups.requests == 0
