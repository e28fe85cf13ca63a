"""What an operator sees."""

from __future__ import annotations

from prefixcache.index import (
    MissReason,
    Namespace,
    NamespaceStats,
    NodeView,
    PrefixCache,
    Scope,
    pack,
)
from tests.index.published import T, U, publish
from tests.index.small import NS, cache_of, hold, keep


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
        lookups=2,
        lookup_tokens=9,
        hit_tokens=4,
        misses={MissReason.NOTHING_STORED: 1},
    )
    cache.invalidate(Scope.namespace(NS))
    assert [stats.namespace for stats in cache.namespace_stats()] == [T]


def test_counters_of_trees_that_have_gone_are_kept() -> None:
    """For the tenant, and for all."""
    cache = cache_of()
    keep(cache, 1, 2, namespace=T)
    keep(cache, 1, 2, 3, 4, namespace=U)
    cache.evict(9)
    assert (cache.stats().lookups, cache.stats().lookup_tokens) == (2, 6)
    assert cache.tenant_stats("t").lookups == 1
    assert cache.tenant_stats("t").evicted_blocks == 1
    assert cache.tenant_stats("never seen").lookups == 0


def test_a_snapshot_shows_every_node() -> None:
    """Where it starts, what it holds, and who is above and below; parents first."""
    now = 10.0
    cache = PrefixCache(pool_blocks=[12], block_size_tokens=2, clock=lambda: now)
    keep(cache, 1, 2, 3, 4)
    now = 15.0
    lease = hold(cache, 1, 2, 9, 9)
    assert cache.retain(lease, 2, seconds=100) == 2
    (tree,) = cache.snapshot().trees
    assert (tree.namespace, tree.is_current, tree.published) == (NS, True, None)
    trunk, *branches = tree.nodes
    assert (trunk.parent, trunk.start_token, trunk.n_tokens, trunk.n_blocks) == (None, 0, 2, 1)
    assert (trunk.pins, trunk.retained, trunk.n_children, trunk.hits) == (1, True, 2, 1)
    assert trunk.idle_seconds is None
    used, idle = sorted(branches, key=lambda node: node.idle_seconds is not None)
    assert (used.pins, used.retained, used.n_children) == (1, False, 0)
    assert idle == NodeView(
        id=idle.id,
        parent=trunk.id,
        start_token=2,
        n_tokens=2,
        n_blocks=1,
        on_device=True,
        pins=0,
        retained=False,
        hits=0,
        idle_seconds=5.0,
        n_children=0,
    )


def test_a_snapshot_says_what_it_leaves_out() -> None:
    """A root counts as a node; a tenant's snapshot has its own trees alone."""
    cache = cache_of()
    for start in (1, 3, 5):
        keep(cache, start, 0, namespace=T)
    keep(cache, 1, 2, namespace=Namespace(tenant="u"))
    assert cache.snapshot(max_nodes=6).is_complete
    for max_nodes in range(6):
        snapshot = cache.snapshot(max_nodes=max_nodes)
        assert not snapshot.is_complete
        assert sum(1 + len(tree.nodes) for tree in snapshot.trees) == max_nodes
    (tree,) = cache.snapshot(tenant="u").trees
    assert tree.namespace.tenant == "u"


def test_a_snapshot_tells_what_hangs_from_a_prompt_and_what_is_stale() -> None:
    """A mount is a tree of its own."""
    cache = cache_of()
    published = publish(cache, 1, 2, name="house rules")
    keep(cache, 1, 2, 3, 4, namespace=T)
    (tree,) = [tree for tree in cache.snapshot(tenant="t").trees if tree.nodes]
    assert (tree.published, tree.is_current) == ("house rules 1", True)
    assert [node.start_token for node in tree.nodes] == [2]
    cache.prompts.retire(published)
    (tree,) = [tree for tree in cache.snapshot(tenant="t").trees if tree.nodes]
    assert not tree.is_current
