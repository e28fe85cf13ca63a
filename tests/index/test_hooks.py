"""What a hook may not do, and what its failures cost."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from prefixcache.errors import HookError
from prefixcache.index import BlockCopy, BlockEvent, Lease, PrefixCache, Published, Scope, pack
from tests.index.small import NS, found


class Meddler:
    """A hook of every kind, which does `call` each time, and notes what that raised."""

    def __init__(self) -> None:
        self.call: Callable[[], object] = lambda: None
        self.raised: list[Exception] = []

    def __call__(self, copy: BlockCopy) -> None:
        self.meddle()

    def stored(self, event: BlockEvent) -> None:
        self.meddle()

    def removed(self, event: BlockEvent) -> None:
        self.meddle()

    def cleared(self, scope: Scope | Published) -> None:
        self.meddle()

    def demote(self, event: BlockEvent) -> None:
        self.meddle()

    def forget(self, handle: object) -> None:
        self.meddle()

    def meddle(self) -> None:
        try:
            self.call()
        except HookError as error:
            self.raised.append(error)


def held(cache: PrefixCache, *ids: int) -> Lease:
    lease = cache.acquire(NS, pack(ids))
    cache.commit(lease, pack(ids))
    return lease


CHANGES: dict[str, Callable[[PrefixCache, Lease], object]] = {
    "acquire": lambda cache, _: cache.acquire(NS, pack([7, 7])),
    "extend": lambda cache, lease: cache.extend(lease, 6),
    "commit": lambda cache, lease: cache.commit(lease, pack([9, 9, 9, 9])),
    "release": lambda cache, lease: cache.release(lease),
    "evict": lambda cache, _: cache.evict(1),
    "invalidate": lambda cache, _: cache.invalidate(Scope.tenant("x")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_hook_cannot_change_the_cache(change: str) -> None:
    """Whatever it calls is refused, and the call that it is part of goes on as if nothing was."""
    meddler = Meddler()
    cache = PrefixCache(
        pool_blocks=[8],
        block_size_tokens=2,
        growth_blocks=0,
        copy_block=meddler,
        lower_tier=meddler,
    )
    cache.subscribe(meddler)
    bystander = cache.acquire(NS, pack([9, 9, 9, 9]))
    meddler.call = lambda: CHANGES[change](cache, bystander)
    for ids in ([1, 2, 3, 4, 5], [1, 2, 3, 9], [5, 6, 7, 8, 5, 6]):
        cache.release(held(cache, *ids))
        cache.check()
    assert len(meddler.raised) >= 4
    assert "do it after the call" in str(meddler.raised[0])
    assert found(cache, 5, 6, 7, 8, 5, 6, 0) == 6
    meddler.call = lambda: None
    cache.release(bystander)
    cache.check()


def test_a_hook_may_look() -> None:
    """A look-up, counts and a snapshot change nothing."""
    meddler = Meddler()
    cache = PrefixCache(pool_blocks=[8], block_size_tokens=2)
    cache.subscribe(meddler)
    seen: list[int] = []
    meddler.call = lambda: seen.append(found(cache, 1, 2, 3, 4, 0) + cache.counts().free)
    held(cache, 1, 2, 3, 4)
    assert seen == [4 + 6]
    assert not meddler.raised


def test_what_an_observer_or_tier_raises_is_logged_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is lost but what it was told; what the tier would have kept is forgotten."""
    meddler = Meddler()
    cache = PrefixCache(pool_blocks=[8], block_size_tokens=2, lower_tier=meddler)
    cache.subscribe(meddler)

    def fail() -> None:
        raise ValueError("disk full")

    meddler.call = fail
    with caplog.at_level(logging.ERROR):
        cache.release(held(cache, 1, 2, 3, 4))
        assert cache.evict(2) == 2
    cache.check()
    assert len(caplog.records) == 3
    assert "disk full" in caplog.text
    assert cache.snapshot().trees == []


def test_what_a_copy_raises_goes_through_and_nothing_is_held() -> None:
    """The request has no lease, and the cache works on."""

    def fail(copy: BlockCopy) -> None:
        raise ValueError("device lost")

    cache = PrefixCache(pool_blocks=[8], block_size_tokens=2, copy_block=fail)
    cache.release(held(cache, 1, 2, 3, 4))
    with pytest.raises(ValueError, match="device lost"):
        cache.acquire(NS, pack([1, 2, 3, 9, 9]))
    cache.check()
    assert cache.counts().held == 0
