"""`check` finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prefixcache.errors import BooksError
from prefixcache.index import Lease, Namespace, PrefixCache, pack
from prefixcache.types import BlockId, Span

NS = Namespace()


def unpin(cache: PrefixCache, lease: Lease) -> None:
    lease.node.pins -= 1


def count_wrongly(cache: PrefixCache, lease: Lease) -> None:
    cache._pools.pools[0].unpin(1)


def share_a_block(cache: PrefixCache, lease: Lease) -> None:
    stored, own = lease.runs[0][0], lease.runs[0][-1]
    lease.runs = ((stored._replace(n_blocks=stored.n_blocks - 1), Span(stored.first, 1)),)
    assert own is not None


def lose_a_block(cache: PrefixCache, lease: Lease) -> None:
    lease.runs = ((lease.runs[0][0]._replace(n_blocks=lease.n_blocks - 1),),)
    lease.n_blocks -= 1
    lease.n_needed -= 1


def swap_the_path(cache: PrefixCache, lease: Lease) -> None:
    first, n_blocks = lease.runs[0][0]
    moved = Span(BlockId(first + n_blocks - 1), 1), Span(first, n_blocks - 1)
    lease.runs = (moved,)


def cut_an_edge(cache: PrefixCache, lease: Lease) -> None:
    lease.node.edge = lease.node.edge[:-8]


def change_a_key(cache: PrefixCache, lease: Lease) -> None:
    lease.node.edge = pack([9, 9]) + lease.node.edge[8:]


def forget_a_parent(cache: PrefixCache, lease: Lease) -> None:
    lease.node.parent = None


def list_a_pinned_node(cache: PrefixCache, lease: Lease) -> None:
    cache._keeper._listed[lease.node.id] = lease.node


def list_a_stranger(cache: PrefixCache, lease: Lease) -> None:
    node = type(lease.node)(cache._keeper.new_id(), b"", ((),))
    cache._keeper._listed[node.id] = node


def miscount_slack(cache: PrefixCache, lease: Lease) -> None:
    cache._leases.n_slack += 1


def forget_a_lease(cache: PrefixCache, lease: Lease) -> None:
    del cache._leases._live[lease.id]


def use_a_child_after_its_parent(cache: PrefixCache, lease: Lease) -> None:
    cache.release(lease)
    lease.node.last_used += 1
    lease.node.parent.last_used -= 10  # type: ignore[union-attr]


def free_a_used_block(cache: PrefixCache, lease: Lease) -> None:
    cache._pools.pools[0].free_held([Span(lease.runs[0][0].first, 1)])


@pytest.mark.parametrize(
    "damage",
    [
        unpin,
        count_wrongly,
        share_a_block,
        lose_a_block,
        swap_the_path,
        cut_an_edge,
        change_a_key,
        forget_a_parent,
        list_a_pinned_node,
        list_a_stranger,
        miscount_slack,
        forget_a_lease,
        use_a_child_after_its_parent,
        free_a_used_block,
    ],
    ids=lambda damage: str(damage.__name__),
)
def test_damage_is_found(damage: Callable[[PrefixCache, Lease], None]) -> None:
    """Each way in which the books can be wrong raises."""
    cache = PrefixCache(pool_blocks=[12], block_size_tokens=2, growth_blocks=0)
    for ids in ([1, 2, 3, 4, 5, 6], [1, 2, 7, 8]):
        other = cache.acquire(NS, pack(ids))
        cache.commit(other, pack(ids))
        cache.release(other)
    lease = cache.acquire(NS, pack([1, 2, 3, 4, 5, 6, 7]))
    cache.check()
    damage(cache, lease)
    with pytest.raises(BooksError):
        cache.check()
