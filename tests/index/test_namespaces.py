"""Who may match what, and what an invalidation reaches."""

from __future__ import annotations

import pytest

from prefixcache.index import Lease, Namespace, PrefixCache, Scope, pack
from prefixcache.types import PoolCounts

IDS = pack([1, 2, 3, 4, 5])
NS = Namespace()


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(pool_blocks=[20], block_size_tokens=2, growth_blocks=0)


def hold(cache: PrefixCache, namespace: Namespace, ids: bytes = IDS) -> Lease:
    lease = cache.acquire(namespace, ids)
    cache.commit(lease, ids)
    return lease


def keep(cache: PrefixCache, namespace: Namespace, ids: bytes = IDS) -> None:
    cache.release(hold(cache, namespace, ids))


BLUE = [
    Namespace(model="blue"),
    Namespace(adapter="blue"),
    Namespace(tenant="blue"),
    Namespace(salt="blue"),
    Namespace(kv_format="blue"),
]


@pytest.mark.parametrize("asked", BLUE)
def test_each_field_is_a_wall_of_its_own(cache: PrefixCache, asked: Namespace) -> None:
    """Equal text in different fields, or in none, shares nothing."""
    for stored in (NS, *BLUE):
        if stored != asked:
            keep(cache, stored)
    assert cache.match_length(asked, IDS) == 0
    keep(cache, asked)
    assert cache.match_length(asked, IDS) == 4


@pytest.mark.parametrize(
    ("scope", "reached"),
    [
        (Scope.model("m"), [0, 1, 2]),
        (Scope.adapter("a"), [1, 3]),
        (Scope.tenant("t"), [2, 3]),
        (Scope.namespace(Namespace(model="m")), [0]),
        (Scope.model("a"), []),
        (Scope.namespace(NS), []),
    ],
)
def test_an_invalidation_reaches_its_scope_and_nothing_else(
    cache: PrefixCache, scope: Scope, reached: list[int]
) -> None:
    """Every namespace with that model, adapter or tenant, or exactly one."""
    namespaces = [
        Namespace(model="m"),
        Namespace(model="m", adapter="a"),
        Namespace(model="m", tenant="t"),
        Namespace(adapter="a", tenant="t", salt="m"),
    ]
    for namespace in namespaces:
        keep(cache, namespace)
    cache.invalidate(scope)
    lost = [i for i, name in enumerate(namespaces) if cache.match_length(name, IDS) == 0]
    assert lost == reached
    assert cache.reclaim() == 2 * len(reached)
    cache.check()


def test_an_invalidation_frees_nothing_by_itself(cache: PrefixCache) -> None:
    """It costs the same however much is stored; the blocks go when room is needed."""
    keep(cache, NS)
    before = cache.counts()
    cache.invalidate(Scope.model("default"))
    assert cache.counts() == before
    assert cache.match_length(NS, IDS) == 0
    cache.check()


def test_what_was_invalidated_goes_before_what_is_older(cache: PrefixCache) -> None:
    """The least recently used live block outlasts the newest dead one."""
    keep(cache, NS)
    keep(cache, Namespace(tenant="gone"))
    cache.invalidate(Scope.tenant("gone"))
    assert cache.evict(2) == 2
    assert cache.match_length(NS, IDS) == 4
    assert cache.stats().reclaimed_blocks == 2
    assert cache.stats().evicted_blocks == 0
    assert cache.evict(1) == 1
    assert cache.match_length(NS, IDS) == 2


def test_a_request_never_stores_into_a_newer_generation(cache: PrefixCache) -> None:
    """It keeps its blocks until it ends, and then they are free."""
    lease = cache.acquire(NS, IDS)
    cache.invalidate(Scope.namespace(NS))
    cache.commit(lease, IDS)
    assert lease.n_stored == 0
    assert cache.match_length(NS, IDS) == 0
    assert cache.counts().held == 3
    cache.release(lease)
    assert cache.counts() == PoolCounts(free=20, cached=0, held=0)
    cache.check()


def test_what_a_request_had_stored_before_goes_with_it(cache: PrefixCache) -> None:
    """Its path is freed at the release, not when room is needed."""
    lease = hold(cache, NS)
    cache.invalidate(Scope.namespace(NS))
    assert cache.reclaim() == 0
    cache.release(lease)
    assert cache.counts().free == 20


def test_old_and_new_generation_live_side_by_side(cache: PrefixCache) -> None:
    """A request of the old one does not see, keep or disturb what the new one stores."""
    old = hold(cache, NS)
    cache.invalidate(Scope.namespace(NS))
    new = hold(cache, NS)
    assert new.cached_tokens == 0
    assert new.generations != old.generations
    cache.check()
    cache.release(old)
    assert cache.match_length(NS, IDS) == 4
    cache.invalidate(Scope.model("default"))
    assert cache.match_length(NS, IDS) == 0
    cache.release(new)
    assert cache.counts().free == 20
    cache.check()


def test_reclaiming_spares_what_was_stored_since(cache: PrefixCache) -> None:
    """The new tree of an invalidated namespace is not an old one."""
    for scope in (Scope.namespace(NS), Scope.model("default")):
        keep(cache, NS)
        cache.invalidate(scope)
        keep(cache, NS)
        assert cache.reclaim() == 2
        assert cache.match_length(NS, IDS) == 4


def test_every_invalidated_tree_is_reclaimed_not_the_last_alone(cache: PrefixCache) -> None:
    """However many wait, whether one scope took them or several."""
    names = [Namespace(model=model, salt=salt) for model in "mno" for salt in "xy"]
    for name in names:
        keep(cache, name, pack([1, 2, 3]))
    for model in "mno":
        cache.invalidate(Scope.model(model))
    assert cache.evict(2) == 2
    cache.check()
    assert cache.reclaim() == 4
    assert cache.counts().free == 20


def test_branches_of_an_old_tree_go_though_its_trunk_is_in_use(cache: PrefixCache) -> None:
    """Only what a running request reads stays."""
    trunk = hold(cache, NS, pack([1, 2]))
    for branch in (3, 4, 5):
        keep(cache, NS, pack([1, 2, branch, 0, 0, 0]))
    cache.invalidate(Scope.namespace(NS))
    assert cache.evict(1) == 1
    cache.check()
    assert cache.evict(20) == 5
    cache.release(trunk)
    assert cache.counts().free == 20
    cache.check()


def test_a_release_in_a_half_reclaimed_tree_loses_no_block(cache: PrefixCache) -> None:
    """Reclaiming may stop and go on around what releases free meanwhile."""
    leases = [hold(cache, NS, pack([1, 2, branch, 0, 0, 0])) for branch in (3, 4, 5)]
    keep(cache, NS, pack([1, 2, 6, 0]))
    cache.invalidate(Scope.namespace(NS))
    for lease in leases:
        cache.evict(1)
        cache.release(lease)
        cache.check()
    cache.reclaim()
    assert cache.counts().free == 20
    cache.check()


def test_namespaces_without_tokens_leave_nothing_behind(cache: PrefixCache) -> None:
    """Salts that never come again do not fill the memory; `check` refuses empty trees."""
    for n in range(100):
        namespace = Namespace(salt=str(n))
        keep(cache, namespace, pack([1]))
        keep(cache, namespace)
    cache.evict(20)
    cache.check()
    assert cache.counts().free == 20


def test_a_request_is_counted_once_though_its_tree_has_gone(cache: PrefixCache) -> None:
    """When an invalidated tree goes with its last request, its counters are kept, not doubled."""
    lease = hold(cache, NS, pack([1, 2, 3]))
    cache.invalidate(Scope.model("default"))
    cache.release(lease)
    lookups = cache.stats().lookups
    assert (lookups.requests, lookups.tokens) == (1, 3)
