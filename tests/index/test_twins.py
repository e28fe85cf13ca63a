"""Requests that wait for each other's prefixes."""

from __future__ import annotations

from prefixcache.index import Scope, pack
from tests.index.published import T
from tests.index.small import cache_of


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
