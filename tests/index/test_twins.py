"""Requests that wait for each other's prefixes."""

from __future__ import annotations

from prefixcache.index import Lease, Namespace, PrefixCache, Scope, Waiter, pack
from tests.index.published import T, U, publish
from tests.index.small import cache_of, keep


def test_nobody_waits_for_what_will_never_be_stored() -> None:
    """When a leader finds that it was invalidated, one of its waiters goes on."""
    cache = cache_of(24)
    lease = cache.acquire(T, pack(range(8)))
    waiters = [cache.twins.wait(T, pack(range(n))) for n in (9, 10)]
    cache.invalidate(Scope.tenant("t"))
    cache.commit(lease, pack(range(4)))
    assert [waiter is not None and waiter.is_ready for waiter in waiters] == [True, False]
    cache.check()
    cache.release(lease)
    assert [waiter is not None and waiter.is_ready for waiter in waiters] == [True, False]


def wait(cache: PrefixCache, *ids: int, priority: int = 0, name: Namespace = T) -> Waiter:
    """Wait for somebody who is known to run."""
    waiter = cache.twins.wait(name, pack(ids), priority=priority)
    assert waiter is not None
    return waiter


def start(cache: PrefixCache, *ids: int, waiter: Waiter | None = None) -> Lease:
    """Start a request that has computed nothing yet."""
    return cache.acquire(T, pack(ids), waiter=waiter)


def test_a_waiter_pins_nothing() -> None:
    """Neither blocks nor its match: all counts are as before."""
    cache = cache_of()
    keep(cache, 1, 2, namespace=T)
    lease = start(cache, 1, 2, 3, 4, 5)
    before = cache.counts(), lease.node.pins
    waiter = wait(cache, 1, 2, 3, 4, 6)
    assert (cache.counts(), lease.node.pins) == before
    cache.release(lease)
    assert cache.evict(9) == 1
    cache.twins.leave(waiter)
    cache.check()


def test_a_waiter_is_ready_once_all_that_both_share_is_stored() -> None:
    """Though the leader computes more, chunk by chunk; who shares less is ready before."""
    cache = cache_of()
    lease = start(cache, *range(10))
    near, far = wait(cache, 0, 1, 2, 3, 9, 9), wait(cache, *range(8), 9, 9)
    ready = []
    for n in range(2, 11, 2):
        cache.commit(lease, pack(range(n)))
        ready.append((near.is_ready, far.is_ready))
    assert ready == [(False, False), (True, False), (True, False), (True, True), (True, True)]
    assert start(cache, *range(8), 9, 9, waiter=far).cached_tokens == 8


def test_nobody_waits_for_less_than_a_block_or_for_another_path() -> None:
    """Nor for who stores nothing, or has stored already what both share."""
    cache = cache_of()
    assert cache.twins.wait(T, pack([1, 2, 3])) is None
    lease = start(cache, 1, 2, 3, 4, 5)
    assert cache.twins.wait(T, pack([1, 9, 9])) is None
    assert cache.twins.wait(T, pack([1, 2])) is None  # a token is left to compute
    assert cache.twins.wait(U, pack([1, 2, 3, 4, 5])) is None
    cache.commit(lease, pack([1, 2, 3, 4]))
    assert cache.twins.wait(T, pack([1, 2, 3, 4, 9])) is None
    cache.acquire(T, pack([7, 7, 7, 7]), store=False)
    assert cache.twins.wait(T, pack([7, 7, 7, 7])) is None


def test_of_several_the_one_that_spares_most_is_waited_for() -> None:
    """Whichever started first."""
    cache = cache_of()
    start(cache, 1, 2, 9, 9, 9)
    best = start(cache, 1, 2, 3, 4, 5, 6, 9)
    start(cache, 1, 2, 3, 4, 9, 9)
    waiter = wait(cache, 1, 2, 3, 4, 5, 6, 7)
    assert (waiter.leader, waiter.n_tokens) == (best, 6)


def test_a_leader_runs_at_the_highest_priority_among_those_who_wait() -> None:
    """And at its own when they have left."""
    cache = cache_of()
    lease = cache.acquire(T, pack(range(6)), priority=1)
    assert cache.twins.priority(lease) == 1
    low, high = wait(cache, *range(7), priority=0), wait(cache, *range(7), priority=5)
    assert cache.twins.priority(lease) == 5
    cache.twins.leave(high)
    assert cache.twins.priority(lease) == 1
    cache.twins.leave(low)


def test_when_a_leader_is_aborted_one_waiter_leads_the_others() -> None:
    """The one of highest priority, of these the first; the others wait for it, not at once."""
    cache = cache_of()
    lease = start(cache, *range(8))
    waiters = [wait(cache, *range(8), n, priority=p) for n, p in ((10, 0), (11, 2), (12, 2))]
    cache.release(lease)
    assert [waiter.is_ready for waiter in waiters] == [False, True, False]
    heir = start(cache, *range(8), 11, waiter=waiters[1])
    assert [waiter.leader for waiter in waiters] == [heir, None, heir]
    cache.commit(heir, pack(range(8)))
    assert [waiter.is_ready for waiter in waiters] == [True, True, True]
    assert start(cache, *range(8), 12, waiter=waiters[2]).cached_tokens == 8


def test_an_heir_that_leaves_is_followed_by_another() -> None:
    """Until nobody waits; leaving twice is harmless."""
    cache = cache_of()
    lease = start(cache, *range(8))
    waiters = [wait(cache, *range(8), n) for n in range(3)]
    cache.release(lease)
    for n, waiter in enumerate(waiters):
        assert [other.is_ready for other in waiters[n:]] == [True] + [False] * (2 - n)
        cache.twins.leave(waiter)
        cache.twins.leave(waiter)
    cache.check()


def test_followers_of_an_heir_that_stores_nothing_go_on_by_themselves() -> None:
    """They would wait in vain."""
    cache = cache_of()
    lease = start(cache, *range(8))
    heir, follower = (wait(cache, *range(8), n) for n in range(2))
    cache.release(lease)
    cache.acquire(T, pack([*range(8), 0]), store=False, waiter=heir)
    assert follower.is_ready


def test_a_published_prompt_that_is_being_read_is_waited_for() -> None:
    """By its tenants alone, up to where their prompts follow it."""
    cache = cache_of()
    published = cache.prompts.publish("p", pack(range(6)), tenants=frozenset({"t"}))
    lease = cache.prompts.acquire(published)
    assert cache.twins.wait(U, pack(range(9))) is None
    waiter = wait(cache, 0, 1, 2, 3, 9, 9)
    cache.commit(lease, pack(range(2)))
    assert not waiter.is_ready
    cache.commit(lease, pack(range(4)))
    assert waiter.is_ready
    request = start(cache, 0, 1, 2, 3, 9, 9, waiter=waiter)
    assert request.cached_tokens == 4
    cache.check()


def test_a_waiter_behind_a_cached_part_of_a_prompt_finds_who_goes_on() -> None:
    """The leader may be another request of its tenant, behind the same mount."""
    cache = cache_of()
    publish(cache, 1, 2, 3, 4)
    lease = start(cache, 1, 2, 3, 4, 5, 6, 7)
    waiter = wait(cache, 1, 2, 3, 4, 5, 6, 8)
    assert waiter.leader is lease
    cache.commit(lease, pack([1, 2, 3, 4, 5, 6]))
    assert start(cache, 1, 2, 3, 4, 5, 6, 8, waiter=waiter).cached_tokens == 6
    cache.check()
