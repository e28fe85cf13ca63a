"""Reuse of the shared tokens of a block that a prompt leaves midway."""

from __future__ import annotations

import pytest

from prefixcache.index import BlockCopy, Lease, Namespace, PrefixCache, pack
from prefixcache.types import PoolCounts
from tests.index.fake_kv import FakeKV, blocks_of

NS = Namespace()


class Bench:
    """A cache of blocks of four tokens with a fake store."""

    def __init__(self, *pool_blocks: int) -> None:
        self.kv = FakeKV(4, len(pool_blocks))
        self.cache = PrefixCache(
            pool_blocks=pool_blocks,
            block_size_tokens=4,
            growth_blocks=0,
            copy_block=self.kv.copy_block,
        )

    def hold(self, *ids: int) -> Lease:
        lease = self.cache.acquire(NS, pack(ids))
        self.kv.assert_holds(lease, ids[: lease.cached_tokens])
        self.kv.write(lease, ids, lease.cached_tokens)
        self.cache.commit(lease, pack(ids))
        self.cache.check()
        return lease

    def keep(self, *ids: int) -> int:
        """Run a request to its end and return its cached tokens."""
        lease = self.hold(*ids)
        self.cache.release(lease)
        return lease.cached_tokens


def test_the_shared_tokens_of_a_block_are_copied_to_a_fresh_one() -> None:
    """The block that is shared in part stays as it was, and is shared by nobody new."""
    bench = Bench(8)
    first = bench.hold(1, 2, 3, 4, 5, 6, 7, 8)
    second = bench.hold(1, 2, 3, 4, 5, 6, 9)
    assert second.cached_tokens == 6
    assert bench.kv.copies == 1
    assert blocks_of(first)[0] == blocks_of(second)[0]
    assert blocks_of(first)[1] != blocks_of(second)[1]
    bench.kv.assert_holds(first, (1, 2, 3, 4, 5, 6, 7, 8))


def test_of_many_children_the_one_that_shares_most_is_copied() -> None:
    """Whatever the byte order of their ids."""
    bench = Bench(30)
    for third in (0, 7, 256, 70_000, 2**31):
        bench.keep(1, 1, 1, 1, 5, third, 9, 9)
    assert bench.keep(1, 1, 1, 1, 5, 256, 8, 8) == 6
    assert bench.keep(1, 1, 1, 1, 5, 70_000, 9, 8) == 7
    assert bench.keep(1, 1, 1, 1, 5, 7, 9, 10, 0) == 7
    assert bench.keep(1, 1, 1, 1, 5, 7, 8, 9, 0) == 6
    assert bench.keep(1, 1, 1, 1, 5, 3, 9, 9) == 5
    assert bench.keep(1, 1, 1, 1, 6, 7, 9, 9) == 4
    assert bench.keep(5, 1) == 0


def test_the_end_of_a_prompt_is_reused_from_a_longer_one() -> None:
    """Also where the prompt ends before a block does, or with it."""
    bench = Bench(8)
    bench.keep(*range(8))
    assert bench.keep(0, 1, 2, 3, 4, 5, 6) == 6
    assert bench.keep(*range(8)) == 7
    assert bench.keep(0, 1, 2) == 2
    assert bench.keep(0) == 0


def test_every_layer_group_is_copied() -> None:
    """One copy in each group, between blocks of that group."""
    bench = Bench(8, 6)
    bench.keep(1, 2, 3, 4)
    assert bench.keep(1, 2, 9) == 2
    assert bench.kv.copies == 2


def test_a_copy_goes_to_the_first_of_the_new_blocks() -> None:
    """Also where they do not follow each other in the store."""
    bench = Bench(6)
    bench.keep(1, 2, 3, 4)
    gap = bench.hold(5, 6, 7)
    bench.hold(8, 9, 10, 11)
    bench.cache.release(gap)
    bench.hold(12, 13, 14, 15, 16, 17)
    lease = bench.hold(1, 2, 20, 21, 22, 23)
    assert lease.cached_tokens == 2
    assert len(lease.spans()) == 2


def test_a_copy_counts_as_use_of_its_source() -> None:
    """What is reused in part outlasts what is not reused."""
    bench = Bench(8)
    bench.keep(1, 2, 3, 4)
    bench.keep(5, 6, 7, 8)
    bench.keep(1, 2, 0)
    bench.cache.evict(1)
    assert bench.cache.match_length(NS, pack([1, 2, 3, 4, 0])) == 4
    assert bench.cache.match_length(NS, pack([5, 6, 7, 8, 0])) == 0


def test_making_room_does_not_take_the_source_of_the_copy() -> None:
    """The source is the longest unused of all, and is spared."""
    bench = Bench(3)
    bench.keep(1, 2, 3, 4)
    bench.keep(5, 6, 7, 8)
    lease = bench.hold(1, 2, 9, 9, 9)
    assert lease.cached_tokens == 2
    assert bench.cache.match_length(NS, pack([5, 6, 7, 8, 0])) == 0


def test_without_room_for_source_and_copy_the_request_does_without() -> None:
    """Token-exact reuse never refuses what whole-block reuse would admit."""
    bench = Bench(2)
    bench.keep(1, 2, 3, 4)
    lease = bench.hold(1, 2, 9, 9, 9)
    assert lease.cached_tokens == 0
    assert bench.kv.copies == 0
    assert bench.cache.counts() == PoolCounts(free=0, cached=0, held=2)


def test_a_source_on_the_path_is_counted_once() -> None:
    """Its matched half is pinned anyway, so only its tail can be in the way."""
    bench = Bench(4)
    bench.keep(*range(12))
    bench.keep(50, 51, 52, 53)
    assert bench.cache.counts().free == 0
    lease = bench.hold(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0)
    assert lease.cached_tokens == 10
    assert bench.cache.counts() == PoolCounts(free=0, cached=1, held=3)


def test_switched_off_only_whole_blocks_are_reused() -> None:
    """Neither looked up nor copied."""
    copies: list[BlockCopy] = []
    cache = PrefixCache(
        pool_blocks=[8],
        block_size_tokens=4,
        token_exact_reuse=False,
        copy_block=copies.append,
    )
    lease = cache.acquire(NS, pack(range(8)))
    cache.commit(lease, pack(range(8)))
    assert cache.match_length(NS, pack(range(7))) == 4
    assert cache.acquire(NS, pack(range(7))).cached_tokens == 4
    assert not copies


def test_a_copy_that_fails_leaves_nothing_held() -> None:
    """The error reaches the caller, who has no lease to release."""

    def fail(copy: BlockCopy) -> None:
        raise RuntimeError(copy)

    cache = PrefixCache(pool_blocks=[8], block_size_tokens=4, copy_block=fail)
    lease = cache.acquire(NS, pack(range(8)))
    cache.commit(lease, pack(range(8)))
    cache.release(lease)
    with pytest.raises(RuntimeError):
        cache.acquire(NS, pack(range(7)))
    cache.check()
    assert cache.counts() == PoolCounts(free=6, cached=2, held=0)
    assert cache.stats().double_releases == 0
