"""The trees as data."""

from __future__ import annotations

import msgspec
import pytest

from prefixcache.index import PrefixCache, Quota, Scope, pack
from tests.index.published import T, U, publish
from tests.index.small import hold, keep

SECRET = 3_141_592_653


def busy_cache() -> PrefixCache:
    """Return a cache with two tenants, a prompt, a mount, a running request and a stale tree."""
    now = [0.0]
    cache = PrefixCache(
        pool_blocks=[40],
        block_size_tokens=2,
        growth_blocks=0,
        published_quota=Quota(max_blocks=9),
        clock=lambda: now[0],
    )
    keep(cache, SECRET, 1, 2, 3, namespace=U)
    cache.invalidate(Scope.tenant("u"))
    publish(cache, 1, 2, 3)
    keep(cache, 1, 2, 3, 4, 5, 6, namespace=T)
    keep(cache, 5, 6, 7, 8, namespace=T)
    keep(cache, 5, 6, 9, 9, namespace=U)
    lease = hold(cache, 5, 6, 7, 8, 9, 10, namespace=T)
    assert cache.retain(lease, 4, seconds=100) == 4
    now[0] = 7.5
    return cache


def test_it_shows_every_tree_and_what_it_hangs_from() -> None:
    """Current ones and stale ones, the system's, and those behind a published prompt."""
    snapshot = busy_cache().snapshot()
    assert snapshot.is_complete
    shown = {(t.namespace.tenant, t.is_current, t.published, len(t.nodes)) for t in snapshot.trees}
    assert shown == {
        ("u", False, None, 1),
        ("(system)", True, None, 2),
        ("t", True, "p 1", 1),
        ("t", True, None, 2),
        ("u", True, None, 1),
    }


def test_a_node_tells_its_place_and_its_use() -> None:
    """Parents come before children; lengths, pins and retentions are those of the tree."""
    snapshot = busy_cache().snapshot(tenant="t")
    tree = next(tree for tree in snapshot.trees if tree.published is None)
    trunk, tail = tree.nodes
    assert (trunk.id, trunk.parent, tail.parent) == (0, None, 0)
    assert (trunk.start_token, trunk.n_tokens, trunk.n_blocks) == (0, 4, 2)
    assert (tail.start_token, tail.n_tokens, tail.n_blocks) == (4, 2, 1)
    assert (trunk.n_children, trunk.hits, trunk.on_device) == (1, 1, True)
    assert (tail.n_children, tail.hits, tail.on_device) == (0, 0, True)
    assert (trunk.pins, trunk.retained, tail.pins, tail.retained) == (1, True, 1, False)
    assert trunk.idle_seconds is tail.idle_seconds is None
    behind = next(tree for tree in snapshot.trees if tree.published is not None)
    assert [(node.start_token, node.idle_seconds) for node in behind.nodes] == [(2, 7.5)]


@pytest.mark.parametrize("max_nodes", range(14))
def test_it_is_bounded_and_says_so(max_nodes: int) -> None:
    """Roots and mounts count as nodes too."""
    snapshot = busy_cache().snapshot(max_nodes=max_nodes)
    n_shown = len(snapshot.trees) + sum(len(tree.nodes) for tree in snapshot.trees)
    assert n_shown == min(max_nodes, 12)
    assert snapshot.is_complete == (max_nodes >= 12)


def test_no_token_id_is_in_it() -> None:
    """What tenants wrote is theirs."""
    packed = pack([SECRET])
    for encoded in (
        msgspec.json.encode(busy_cache().snapshot()),
        msgspec.msgpack.encode(busy_cache().snapshot()),
    ):
        assert str(SECRET).encode() not in encoded
        assert packed not in encoded
        assert packed[::-1] not in encoded


def test_looking_changes_nothing() -> None:
    """Two snapshots are equal, and so are the books."""
    cache = busy_cache()
    assert cache.snapshot() == cache.snapshot()
    cache.check()
