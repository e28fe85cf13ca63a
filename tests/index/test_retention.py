"""Prefixes that outlast traffic."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from prefixcache.errors import ConfigError
from prefixcache.index import Lease, Namespace, PrefixCache, Quota, Scope, pack
from tests.index.published import T, U, publish
from tests.index.small import found, hold, keep


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def cache_of(n_blocks: int = 12, budget: int = 12, clock: Clock | None = None) -> PrefixCache:
    return PrefixCache(
        pool_blocks=[n_blocks],
        block_size_tokens=2,
        growth_blocks=0,
        token_exact_reuse=False,
        retained_blocks=budget,
        published_quota=Quota(max_blocks=n_blocks),
        clock=clock or Clock(),
    )


def retain(cache: PrefixCache, lease: Lease, n_tokens: int, *, priority: int = 0) -> int:
    n_kept = cache.retain(lease, n_tokens, seconds=100, priority=priority)
    cache.check()
    return n_kept


def keep_long(
    cache: PrefixCache, *ids: int, namespace: Namespace = T, seconds: float = 100, priority: int = 0
) -> int:
    """Run a request to its end and retain all of it."""
    lease = hold(cache, *ids, namespace=namespace)
    n_kept = cache.retain(lease, len(ids), seconds=seconds, priority=priority)
    cache.release(lease)
    cache.check()
    return n_kept


@pytest.mark.parametrize("n_evicted", range(1, 5))
def test_what_was_invalidated_is_retained_no_more(n_evicted: int) -> None:
    """It goes first, block by block, and its tenant's budget is free again."""
    cache = cache_of()
    assert keep_long(cache, 1, 2, 3, 4, 5, 6) == 6
    keep(cache, 7, 7, namespace=U)
    cache.invalidate(Scope.tenant("t"))
    cache.check()
    assert cache.evict(n_evicted) == n_evicted
    cache.check()
    assert found(cache, 7, 7, 7, namespace=U) == (2 if n_evicted < 4 else 0)
    assert cache.tenant_stats("t").retained_blocks == 0
    cache.reclaim()
    cache.check()


def test_what_is_retained_below_a_running_request_can_be_reclaimed() -> None:
    """The running request's own nodes are kept by nothing then, and go when it ends."""
    cache = cache_of()
    lease = hold(cache, 1, 2, 3, 4, 5, 6, namespace=T)
    assert retain(cache, lease, 6) == 6
    other = hold(cache, 1, 2, 9, namespace=T)
    cache.release(lease)
    cache.invalidate(Scope.tenant("t"))
    assert cache.reclaim() == 2
    cache.check()
    cache.release(other)
    cache.check()
    assert cache.counts().free == 12


def test_an_invalidated_request_keeps_nothing() -> None:
    """Neither what it retains afterwards nor what it had retained stays when it ends."""
    for late in (False, True):
        cache = cache_of()
        lease = hold(cache, 1, 2, 3, 4, 5, 6, namespace=T)
        if not late:
            assert retain(cache, lease, 6) == 6
        cache.invalidate(Scope.tenant("t"))
        cache.reclaim()
        if late:
            assert retain(cache, lease, 4) == 0
        cache.release(lease)
        cache.check()
        assert cache.counts().free == 12


def test_what_hung_from_a_retired_prompt_is_retained_no_more() -> None:
    """The rest of the tenant's tree is kept as it was."""
    cache = cache_of()
    published = publish(cache, 1, 2)
    assert keep_long(cache, 1, 2, 3, 4, 5, 6) == 6
    assert keep_long(cache, 7, 8) == 2
    cache.prompts.retire(published)
    cache.check()
    assert cache.reclaim() == 2
    cache.check()
    assert cache.tenant_stats("t").retained_blocks == 1
    assert found(cache, 7, 8, 9, namespace=T) == 2


def test_the_end_of_a_retention_counts_as_a_use() -> None:
    """It goes after what was used before, though what is above it stays retained."""
    clock = Clock()
    cache = cache_of(clock=clock)
    keep_long(cache, 1, 2, seconds=200)
    keep_long(cache, 1, 2, 3, 4, seconds=50)
    clock.now = 10
    keep(cache, 7, 7, namespace=T)
    clock.now = 60
    cache.reclaim()
    cache.check()
    assert cache.evict(1) == 1
    cache.check()
    assert (found(cache, 7, 7, 0, namespace=T), found(cache, 1, 2, 3, 4, 0, namespace=T)) == (0, 4)
    assert cache.evict(5) == 2
    cache.check()


def test_an_eviction_for_nobody_spares_nothing() -> None:
    """What is retained within a reserve, or by the system, is given up at last."""
    cache = cache_of()
    cache.set_quota("t", Quota(reserved_blocks=5))
    publish(cache, 1, 2, 3, 4)
    assert keep_long(cache, 5, 6, 7, 8) == 4
    keep(cache, 9, 9, namespace=U)
    assert cache.evict(1) == 1
    assert found(cache, 9, 9, 9, namespace=U) == 0
    assert cache.evict(2) == 2
    assert found(cache, 1, 2, 3, 4, 5, namespace=U) == 4
    assert cache.evict(9) == 2
    assert cache.counts().free == 12
    cache.check()


def test_what_is_retained_outlasts_all_traffic() -> None:
    """For its lifetime, whatever was used after it; then it goes like the rest."""
    clock = Clock()
    cache = cache_of(clock=clock)
    assert keep_long(cache, 1, 2, 3, 4, seconds=50) == 4
    for n in range(10, 50):
        keep(cache, n, n, n, n, namespace=T)
    assert found(cache, 1, 2, 3, 4, 0, namespace=T) == 4
    clock.now = 50
    for n in range(10, 50):
        keep(cache, n, n, n, n, namespace=T)
    assert found(cache, 1, 2, 3, 4, 0, namespace=T) == 0


def test_no_request_is_refused_for_what_is_retained() -> None:
    """Of several, the one of lowest priority gives way, then the one that would end first."""
    cache = cache_of()
    keep_long(cache, 1, 1, 1, 1, priority=1, seconds=10)
    keep_long(cache, 2, 2, 2, 2, priority=0, seconds=90)
    keep_long(cache, 3, 3, 3, 3, priority=0, seconds=20)
    for n_blocks, left in ((8, [4, 4, 0]), (10, [4, 0, 0]), (12, [0, 0, 0])):
        lease = cache.acquire(U, pack(range(100, 100 + 2 * n_blocks)))
        assert [found(cache, *[n] * 4, 0, namespace=T) for n in (1, 2, 3)] == left
        cache.release(lease)
        cache.check()


def test_a_tenant_retains_no_more_than_its_budget() -> None:
    """What would end first gives way; a prefix longer than the budget is kept in part."""
    cache = cache_of(budget=3)
    assert keep_long(cache, 1, 1, 2, 2, seconds=10) == 4
    assert keep_long(cache, 3, 3, 4, 4, seconds=90) == 4
    assert cache.tenant_stats("t").retained_blocks == 2
    assert keep_long(cache, *range(10, 20)) == 6
    assert cache.tenant_stats("t").retained_blocks == 3
    assert keep_long(cache, 5, 5, namespace=U) == 2
    assert cache.tenant_stats("u").retained_blocks == 1


def test_only_whole_stored_blocks_are_retained() -> None:
    """Not what a request has yet to commit, nor half a block, nor what it passed through."""
    cache = cache_of()
    lease = cache.acquire(T, pack([1, 2, 3, 4, 5, 6]))
    assert retain(cache, lease, 6) == 0
    cache.commit(lease, pack([1, 2, 3, 4, 5]))
    assert retain(cache, lease, 6) == 4
    assert retain(cache, lease, 3) == 2
    published = publish(cache, 7, 7)
    behind = hold(cache, 7, 7, 8, 8, namespace=T)
    before = cache.tenant_stats("t").retained_blocks
    assert retain(cache, behind, 2) == 0
    assert retain(cache, behind, 4) == 4
    assert cache.tenant_stats("t").retained_blocks == before + 1
    cache.prompts.retire(published)
    cache.check()


def test_retaining_again_lasts_as_long_as_the_longer_of_both() -> None:
    """A shorter one does not shorten what was promised."""
    clock = Clock()
    cache = cache_of(clock=clock)
    for seconds in (90, 10):
        keep_long(cache, 1, 2, 3, 4, seconds=seconds)
    clock.now = 50
    cache.reclaim()
    assert cache.tenant_stats("t").retained_blocks == 2
    clock.now = 90
    cache.reclaim()
    assert cache.tenant_stats("t").retained_blocks == 0
    cache.check()


@pytest.mark.parametrize("seconds", [(50, 100), (100, 20)])
def test_a_renewed_retention_lasts_to_the_later_end(seconds: tuple[float, float]) -> None:
    """The end of the first has no meaning any more, nor has an earlier one."""
    clock = Clock()
    cache = cache_of(clock=clock)
    for n in seconds:
        keep_long(cache, 1, 2, 3, 4, seconds=n)
    clock.now = 60
    cache.expire()
    cache.check()
    assert cache.tenant_stats("t").retained_blocks == 2
    clock.now = 101
    cache.expire()
    assert cache.tenant_stats("t").retained_blocks == 0


def test_any_request_ends_what_is_overdue() -> None:
    """Each retention at its own time, whoever made it and whoever asks."""
    clock = Clock()
    cache = cache_of(clock=clock)
    keep_long(cache, 1, 2, 3, 4, seconds=20)
    keep_long(cache, 5, 6, seconds=10, namespace=U)
    for now, expected in ((9, (2, 1)), (10, (2, 0)), (19, (2, 0)), (20, (0, 0))):
        clock.now = now
        keep(cache, 7, 8)
        cache.check()
        assert tuple(cache.tenant_stats(t).retained_blocks for t in ("t", "u")) == expected


@pytest.mark.parametrize(
    "weights", [((100, 1), (100, 0)), ((100, 0), (50, 0)), ((50, 1), (100, 0))]
)
def test_the_weakest_retention_gives_way_first(weights: tuple[tuple[float, int], ...]) -> None:
    """The lowest priority, and of equal ones what would end first, whichever came first."""
    for order in (weights, weights[::-1]):
        cache = cache_of(4)
        for seconds, priority in order:
            head = 1 if (seconds, priority) == weights[0] else 3
            keep_long(cache, head, 2, seconds=seconds, priority=priority)
        keep(cache, *range(50, 56), namespace=T)
        assert found(cache, 1, 2, 0, namespace=T) == 2
        assert found(cache, 3, 2, 0, namespace=T) == 0


def test_a_budget_below_nothing_is_refused() -> None:
    """With none at all, nothing is retained."""
    with pytest.raises(ConfigError, match="retained_blocks = -1"):
        cache_of(budget=-1)
    assert keep_long(cache_of(budget=0), 1, 2, 3, 4) == 0


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_lifetime_that_never_begins_is_refused(seconds: float) -> None:
    """Nothing is retained, and the error names the number."""
    cache = cache_of()
    lease = hold(cache, 1, 2, 3, 4, namespace=T)
    with pytest.raises(ConfigError, match="seconds"):
        cache.retain(lease, 4, seconds=seconds)
    cache.release(lease)
    cache.check()
    assert cache.tenant_stats("t").retained_blocks == 0


def test_what_a_request_uses_does_not_give_way() -> None:
    """Its blocks could not be had anyway, so it is retained still when the request has ended."""
    cache = cache_of(4)
    used = hold(cache, 1, 2, 3, namespace=T)
    retain(cache, used, 2)
    idle = hold(cache, 5, 6, namespace=T)
    retain(cache, idle, 2, priority=1)
    cache.release(idle)
    other = hold(cache, 7, 8, 9, namespace=T)
    assert found(cache, 5, 6, 9, namespace=T) == 0
    cache.release(used)
    cache.release(other)
    keep(cache, *range(10, 16), namespace=T)
    assert found(cache, 1, 2, 3, namespace=T) == 2
