"""`check` finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prefixcache.errors import BooksError
from prefixcache.index import Lease, Namespace, PrefixCache, pack
from prefixcache.types import Span

NS = Namespace()


def unpin(cache: PrefixCache, lease: Lease) -> None:
    lease.node.pins -= 1


def count_wrongly(cache: PrefixCache, lease: Lease) -> None:
    cache._pools.n_cached += 1


def share_a_block(cache: PrefixCache, lease: Lease) -> None:
    lease.own = ((Span(lease.node.runs[0][0].first, 1),),)


def lose_a_block(cache: PrefixCache, lease: Lease) -> None:
    lease.own = ((),)
    lease.n_blocks -= 1
    lease.n_needed -= 1


def forget_where_it_ends(cache: PrefixCache, lease: Lease) -> None:
    lease.n_stored -= 1
    lease.own = ((lease.node.runs[0][0], *lease.own[0]),)


def cut_an_edge(cache: PrefixCache, lease: Lease) -> None:
    lease.node.edge = lease.node.edge[:-8]


def change_a_key(cache: PrefixCache, lease: Lease) -> None:
    lease.node.edge = pack([9, 9]) + lease.node.edge[8:]


def forget_a_parent(cache: PrefixCache, lease: Lease) -> None:
    lease.node.parent = None


def list_a_pinned_node(cache: PrefixCache, lease: Lease) -> None:
    lease.account.policy.add(lease.node)


def forget_to_list_a_node(cache: PrefixCache, lease: Lease) -> None:
    victim = lease.account.policy.victim(0)
    assert victim is not None
    lease.account.policy.discard(victim)


def miscount_an_account(cache: PrefixCache, lease: Lease) -> None:
    lease.account.n_cached += 1


def miscount_a_retention(cache: PrefixCache, lease: Lease) -> None:
    lease.account.n_kept += 1


def keep_what_nobody_retained(cache: PrefixCache, lease: Lease) -> None:
    lease.node.keeps += 1


def lose_a_reserve(cache: PrefixCache, lease: Lease) -> None:
    cache._accounts._reserves._n_unused += 1


def put_a_child_on_the_device_twice(cache: PrefixCache, lease: Lease) -> None:
    lease.root.n_resident += 1


def miscount_slack(cache: PrefixCache, lease: Lease) -> None:
    cache._accounts._reserves.n_slack += 1


def forget_a_lease(cache: PrefixCache, lease: Lease) -> None:
    del cache._leases.live[lease]


def use_a_child_after_its_parent(cache: PrefixCache, lease: Lease) -> None:
    cache.release(lease)
    lease.node.last_used += 1
    lease.node.parent.last_used -= 10  # type: ignore[union-attr]


def free_a_used_block(cache: PrefixCache, lease: Lease) -> None:
    cache._pools.pools[0].free(Span(lease.own[0][0].first, 1))


@pytest.mark.parametrize(
    "damage",
    [
        unpin,
        count_wrongly,
        share_a_block,
        lose_a_block,
        forget_where_it_ends,
        cut_an_edge,
        change_a_key,
        forget_a_parent,
        list_a_pinned_node,
        forget_to_list_a_node,
        miscount_an_account,
        miscount_a_retention,
        keep_what_nobody_retained,
        lose_a_reserve,
        put_a_child_on_the_device_twice,
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
