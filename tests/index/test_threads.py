"""What may be called from which threads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest

from prefixcache.index import Namespace, PrefixCache, pack


@pytest.fixture(autouse=True)
def _threads_change_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize(
    "look",
    [
        lambda cache: cache.counts(),
        lambda cache: cache.longest_free_run(),
        lambda cache: cache.stats(),
    ],
    ids=["counts", "longest_free_run", "stats"],
)
def test_gauges_can_be_read_while_another_thread_works(
    look: Callable[[PrefixCache], object],
) -> None:
    """Tenants, trees and free runs come and go meanwhile; no reading fails."""
    cache = PrefixCache(pool_blocks=[600], block_size_tokens=1, growth_blocks=0)
    errors: list[BaseException] = []
    is_over = Event()

    def read() -> None:
        while not is_over.is_set():
            try:
                look(cache)
            except BaseException as error:
                errors.append(error)
                return

    reader = Thread(target=read)
    reader.start()
    leases = []
    for n in range(1500):
        lease = cache.acquire(Namespace(tenant=f"tenant {n}"), pack([n]))
        cache.commit(lease, pack([n]))
        leases.append(lease)
        if len(leases) > 300:
            cache.release(leases.pop(n * 7 % 300))
        if errors:
            break
    is_over.set()
    reader.join()
    cache.check()
    assert errors == []


def test_calls_may_come_from_any_thread_one_at_a_time() -> None:
    """No state hangs on the thread that made the cache or a lease."""
    cache = PrefixCache(pool_blocks=[12], block_size_tokens=2)
    ids = pack([1, 2, 3, 4])
    leases = [cache.acquire(Namespace(), ids)]

    def work() -> None:
        cache.commit(leases[0], ids)
        leases.append(cache.acquire(Namespace(), ids))
        cache.release(leases[0])

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert leases[1].cached_tokens == 3
    cache.release(leases[1])
    cache.check()
