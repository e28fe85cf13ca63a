"""Whose blocks go, and who may have how many."""

from __future__ import annotations

import pytest

from prefixcache.errors import ConfigError, PoolExhaustedError, RequestTooLargeError
from prefixcache.index import SYSTEM_TENANT, Lease, Namespace, PrefixCache, Quota, pack
from tests.index.published import T, U, publish, read
from tests.index.small import found, hold, keep

V = Namespace(tenant="v")


def cache_of(n_blocks: int = 12, *, growth_blocks: int = 0, **quotas: Quota) -> PrefixCache:
    return PrefixCache(
        pool_blocks=[n_blocks],
        block_size_tokens=2,
        growth_blocks=growth_blocks,
        token_exact_reuse=False,
        quotas=quotas,
        retained_blocks=n_blocks,
    )


def keep_blocks(cache: PrefixCache, namespace: Namespace, *starts: int) -> None:
    """Leave a cached block that begins with each of `starts`."""
    for start in starts:
        keep(cache, start, 0, namespace=namespace)


def take(cache: PrefixCache, namespace: Namespace, n_blocks: int) -> Lease:
    """Hold blocks of a prompt that is like no other."""
    lease = cache.acquire(namespace, pack(range(1000, 1000 + 2 * n_blocks)), read=False)
    cache.check()
    return lease


def cached_of(cache: PrefixCache, namespace: Namespace) -> int:
    return cache.tenant_stats(namespace.tenant).cached_blocks


def retain_all(cache: PrefixCache, namespace: Namespace, *ids: int) -> None:
    """Run a request to its end and retain all of it."""
    lease = hold(cache, *ids, namespace=namespace)
    assert cache.retain(lease, len(ids), seconds=100) == len(ids)
    cache.release(lease)
    cache.check()


def test_within_its_reserve_a_tenant_takes_its_own_slack_too() -> None:
    """What it has ahead of need in one request is there for its other ones."""
    cache = cache_of(10, growth_blocks=2, t=Quota(reserved_blocks=6))
    take(cache, U, 4)
    growing = cache.acquire(T, pack([1, 2]))
    cache.extend(growing, 3)
    assert (growing.capacity_tokens, cache.counts().free) == (6, 3)
    take(cache, T, 4)
    assert growing.capacity_tokens == 4
    cache.extend(growing, 4)
    with pytest.raises(PoolExhaustedError):
        take(cache, T, 1)
    cache.check()


def test_within_its_reserve_a_tenant_gives_nothing_of_its_own() -> None:
    """What others retain goes first, though they retain it and it does not."""
    for quota in (Quota(reserved_blocks=4), Quota(reserved_blocks=4, max_blocks=4)):
        cache = cache_of(8, t=quota)
        keep_blocks(cache, T, 1, 2, 3)
        retain_all(cache, U, 9, 9, 8, 8)
        retain_all(cache, U, 7, 7, 6, 6, 5, 5)
        assert cache.counts().free == 0
        keep_blocks(cache, T, 4)
        assert [found(cache, n, 0, 0, namespace=T) for n in (1, 2, 3, 4)] == [2] * 4
        assert cached_of(cache, U) == 4


def test_beyond_its_reserve_a_tenant_gives_its_own_before_what_others_retain() -> None:
    """Only as much as the request takes beyond the reserve, and the oldest."""
    cache = cache_of(8, t=Quota(reserved_blocks=3))
    keep_blocks(cache, T, 1, 2, 3)
    retain_all(cache, U, *range(10, 20))
    keep_blocks(cache, T, 4)
    assert [found(cache, n, 0, 0, namespace=T) for n in (1, 2, 3, 4)] == [0, 2, 2, 2]
    assert cached_of(cache, U) == 5
    take(cache, T, 2)
    assert (cached_of(cache, T), cached_of(cache, U)) == (1, 5)


def test_who_has_grown_past_the_others_gives_first() -> None:
    """Blocks that its requests took while there was room count like cached ones."""
    cache = cache_of(12)
    keep_blocks(cache, T, 1, 2, 3, 4, 5)
    keep_blocks(cache, U, 1, 2, 3)
    assert cache.evict(1) == 1  # now the order is known
    assert (cached_of(cache, T), cached_of(cache, U)) == (4, 3)
    take(cache, U, 5)
    take(cache, V, 1)
    assert (cached_of(cache, T), cached_of(cache, U)) == (4, 2)


def test_a_lowered_reserve_counts_at_once() -> None:
    """Its tenant is furthest over its fair share then, whoever was before."""
    cache = cache_of(12, t=Quota(reserved_blocks=5))
    keep_blocks(cache, T, 1, 2, 3, 4, 5)
    keep_blocks(cache, U, 1, 2, 3, 4)
    assert cache.evict(1) == 1
    assert (cached_of(cache, T), cached_of(cache, U)) == (5, 3)
    cache.set_quota("t", Quota(reserved_blocks=1))
    take(cache, V, 5)
    assert (cached_of(cache, T), cached_of(cache, U)) == (4, 3)


def test_a_reserve_that_others_run_in_is_made_room_for_by_its_own_tenant() -> None:
    """Where a reserve was raised while others hold the blocks, its tenant gives of its own."""
    cache = cache_of(8)
    take(cache, U, 5)
    keep_blocks(cache, T, 1)
    retain_all(cache, T, 2, 0, 2, 1)
    cache.set_quota("t", Quota(reserved_blocks=6))
    for _ in range(2):
        keep_blocks(cache, T, 3)
        cache.release(take(cache, T, 3))
    assert cached_of(cache, T) == 0
    with pytest.raises(PoolExhaustedError):
        take(cache, T, 4)
    cache.check()


def test_a_tenant_has_never_more_than_its_maximum() -> None:
    """At the maximum its own oldest blocks make room, though the pool has free ones."""
    cache = cache_of(12, t=Quota(max_blocks=3))
    keep_blocks(cache, T, 1, 2, 3, 4)
    assert [found(cache, n, 0, 0, namespace=T) for n in (1, 2, 3, 4)] == [0, 2, 2, 2]
    assert cache.counts().free == 9
    take(cache, T, 2)
    with pytest.raises(PoolExhaustedError):
        take(cache, T, 2)
    assert cached_of(cache, T) == 1
    assert cache.tenant_stats("t").evicted_blocks == 3


def test_a_request_beyond_its_tenants_quota_is_refused_for_good() -> None:
    """So is one that only others' reserves have room for; the numbers are in the error."""
    cache = cache_of(12, t=Quota(max_blocks=3), u=Quota(reserved_blocks=5))
    with pytest.raises(RequestTooLargeError) as capped:
        take(cache, T, 4)
    assert (capped.value.needed, capped.value.pool_blocks) == (4, 3)
    with pytest.raises(RequestTooLargeError) as crowded:
        take(cache, V, 8)
    assert (crowded.value.needed, crowded.value.pool_blocks) == (8, 7)
    take(cache, V, 7)
    take(cache, U, 5)
    assert cache.counts().free == 0


def test_published_blocks_count_towards_what_a_request_may_have() -> None:
    """Though they are not the tenant's: a refusal for good does not depend on what is cached."""
    cache = cache_of(12, t=Quota(max_blocks=3))
    published = cache.prompts.publish("p", pack([1, 2, 3, 4]))
    with pytest.raises(RequestTooLargeError):
        cache.acquire(T, pack([1, 2, 3, 4, 5, 6, 7]))
    read(cache, published)
    with pytest.raises(RequestTooLargeError) as whole:
        cache.acquire(T, pack([1, 2, 3, 4, 5, 6, 7]))
    assert (whole.value.needed, whole.value.pool_blocks) == (4, 3)
    own = cache.acquire(T, pack([1, 2, 3, 4, 5]))
    assert (own.cached_tokens, cache.tenant_stats("t").held_blocks) == (4, 1)


@pytest.mark.parametrize(("published_blocks", "reserved_blocks"), [(0, 5), (2, 4)])
def test_reserves_are_strict_where_published_prompts_have_one(
    published_blocks: int, reserved_blocks: int
) -> None:
    """Else what requests use of prompts lacks in the reserves of those who come last."""
    cache = cache_of(10)
    publish(cache, 1, 2, 3, 4)
    cache.set_quota(SYSTEM_TENANT, Quota(reserved_blocks=published_blocks, max_blocks=2))
    for name in (T, U):
        cache.set_quota(name.tenant, Quota(reserved_blocks=reserved_blocks))
    for name in (T, U):
        assert cache.acquire(name, pack([1, 2, 3, 4, 5])).cached_tokens == 4
    take(cache, T, 2)
    if published_blocks:
        for name, n_left in ((T, 1), (U, 3)):
            take(cache, name, n_left)
        assert cache.counts().free == 0
    else:
        with pytest.raises(PoolExhaustedError):
            take(cache, T, 1)


def test_where_tenants_reserve_all_no_prompt_can_be_read() -> None:
    """The system has nothing to read it in then."""
    cache = cache_of(10, t=Quota(reserved_blocks=10))
    with pytest.raises(RequestTooLargeError):
        publish(cache, 1, 2)


def test_a_reserve_is_kept_obtainable_not_empty() -> None:
    """Others may cache in it until its tenant claims it, and may not run in it."""
    cache = cache_of(8, t=Quota(reserved_blocks=5))
    keep_blocks(cache, U, *range(8))
    assert cached_of(cache, U) == 8
    with pytest.raises(RequestTooLargeError):
        take(cache, U, 4)
    take(cache, U, 3)
    with pytest.raises(PoolExhaustedError):
        take(cache, U, 1)
    take(cache, T, 5)
    assert (cache.counts().held, cached_of(cache, U)) == (8, 0)


def test_slack_in_a_reserve_is_not_yet_used() -> None:
    """What a tenant took ahead of need does not shorten what is kept for it."""
    cache = cache_of(8, growth_blocks=2, t=Quota(reserved_blocks=4))
    growing = cache.acquire(T, pack([1, 2]))
    cache.extend(growing, 3)
    assert growing.capacity_tokens == 6
    take(cache, U, 4)
    with pytest.raises(PoolExhaustedError):
        take(cache, U, 1)
    take(cache, T, 2)


def test_others_take_no_slack_that_lies_within_a_reserve() -> None:
    """Who has slack beyond its reserve gives that much, and then the next one."""
    cache = cache_of(12, growth_blocks=4, t=Quota(reserved_blocks=3))
    growing = [cache.acquire(name, pack([1])) for name in (T, V)]
    for lease in growing:
        cache.extend(lease, 3)
    assert [lease.capacity_tokens for lease in growing] == [10, 10]
    take(cache, U, 6)
    assert [lease.capacity_tokens for lease in growing] == [6, 6]


def test_growth_ahead_takes_nobody_elses_slack() -> None:
    """What others took ahead of need is for who needs it now."""
    cache = cache_of(8, growth_blocks=3)
    first, second = (cache.acquire(name, pack([1])) for name in (T, U))
    cache.extend(first, 3)
    take(cache, V, 1)
    cache.extend(second, 3)
    assert (first.capacity_tokens, second.capacity_tokens) == (8, 4)


def test_those_within_their_reserve_do_not_give_to_others() -> None:
    """Who is over its share gives, down to its reserve and no further."""
    cache = cache_of(9, t=Quota(reserved_blocks=3))
    keep_blocks(cache, T, 1, 2, 3, 4)
    keep_blocks(cache, U, 1, 2)
    take(cache, V, 6)
    assert (cached_of(cache, T), cached_of(cache, U)) == (3, 0)


def test_all_shares_are_equal_beyond_the_reserves() -> None:
    """Block by block, whoever is furthest over its reserve gives, whoever used it last."""
    cache = cache_of(12, t=Quota(reserved_blocks=2))
    keep_blocks(cache, U, 1, 2, 3, 4)
    keep_blocks(cache, T, 1, 2, 3, 4, 5, 6, 7)
    take(cache, V, 2)
    assert (cached_of(cache, T), cached_of(cache, U)) == (6, 4)
    take(cache, V, 4)
    assert cached_of(cache, T) - 2 in (cached_of(cache, U) - 1, cached_of(cache, U))


def test_a_lowered_maximum_takes_effect_as_room_is_needed() -> None:
    """Nothing goes at once; the next request finds its tenant over it."""
    cache = cache_of(12)
    keep_blocks(cache, T, 1, 2, 3, 4)
    cache.set_quota("t", Quota(max_blocks=2))
    assert cached_of(cache, T) == 4
    keep_blocks(cache, T, 5)
    assert cached_of(cache, T) == 2
    assert found(cache, 5, 0, 0, namespace=T) == 2


def test_reserves_beyond_the_pool_are_refused() -> None:
    """Together, at the start and later; a refusal changes nothing."""
    with pytest.raises(ConfigError):
        cache_of(8, t=Quota(reserved_blocks=5), u=Quota(reserved_blocks=4))
    cache = cache_of(8, t=Quota(reserved_blocks=5))
    with pytest.raises(ConfigError):
        cache.set_quota("u", Quota(reserved_blocks=4))
    assert cache.tenant_stats("u").reserved_blocks == 0
    cache.set_quota("u", Quota(reserved_blocks=3))
    for wrong in ((-1, None), (0, 0), (3, 2)):
        with pytest.raises(ConfigError):
            Quota(*wrong)


def test_the_systems_name_is_nobodys() -> None:
    """No request can read or fill its tree under that name."""
    with pytest.raises(ConfigError):
        cache_of().acquire(Namespace(tenant=SYSTEM_TENANT), pack([1, 2, 3]))


def test_quotas_are_set_all_at_once_or_not_at_all() -> None:
    """Whoever is not named has the default again, the published prompts theirs."""
    cache = cache_of(12, t=Quota(reserved_blocks=8))
    with pytest.raises(ConfigError, match="the pool has 12 blocks"):
        cache.set_quotas({"u": Quota(reserved_blocks=6), "v": Quota(reserved_blocks=7)})
    assert cache.tenant_stats("t").reserved_blocks == 8
    assert cache.tenant_stats("u").reserved_blocks == 0
    cache.set_quotas({"u": Quota(reserved_blocks=6), SYSTEM_TENANT: Quota(3, 6)})
    shown = {stats.tenant: (stats.reserved_blocks, stats.max_blocks) for stats in cache.tenants()}
    assert shown == {"t": (0, 12), "u": (6, 12), SYSTEM_TENANT: (3, 6)}
    cache.set_quotas({})
    assert cache.tenant_stats(SYSTEM_TENANT).max_blocks == 3
    assert take(cache, T, 12).is_live


def test_what_a_quota_stops_is_told_apart_from_a_full_pool() -> None:
    """Other tenants' ends are of help in one of the cases alone; the cached path counts too."""
    cache = cache_of(12, t=Quota(max_blocks=4))
    keep(cache, 1, 2, 3, 4, namespace=T)
    take(cache, T, 2)
    with pytest.raises(PoolExhaustedError, match="quota leaves") as stopped:
        cache.acquire(T, pack([1, 2, 3, 4, 5, 6]))
    assert stopped.value.by_quota
    growing = take(cache, U, 9)
    assert not cache.holds_beyond_reserve("v")
    assert cache.holds_beyond_reserve("u")
    with pytest.raises(PoolExhaustedError) as stopped:
        cache.extend(growing, 22)
    assert not stopped.value.by_quota
    cache.set_quotas({"u": Quota(reserved_blocks=9)})
    assert not cache.holds_beyond_reserve("u")
