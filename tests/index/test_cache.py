"""The index's rules, one by one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from prefixcache.errors import (
    ConfigError,
    EmptyPromptError,
    LeaseError,
    PoolExhaustedError,
    RequestTooLargeError,
    TokenIdError,
)
from prefixcache.index import Namespace, PrefixCache, pack
from prefixcache.types import PoolCounts
from tests.index.fake_kv import blocks_of
from tests.index.small import NS, cache_of, found, hold, keep


def test_a_stored_prefix_is_found_while_leased_and_after() -> None:
    """A cache that never hits would keep every other rule."""
    cache = cache_of()
    lease = hold(cache, 1, 2, 3, 4)
    assert found(cache, 1, 2, 3, 4, 5) == 4
    cache.release(lease)
    assert found(cache, 1, 2, 3, 4, 5) == 4
    assert found(cache, 1, 2, 9) == 2
    assert found(cache, 9, 2, 3) == 0
    assert cache.acquire(NS, pack([1, 2, 3, 4, 5])).cached_tokens == 4


def test_nothing_is_matchable_before_its_kv_is_written() -> None:
    """What a request is still computing is not found, block by block."""
    cache = cache_of()
    lease = cache.acquire(NS, pack([1, 2, 3, 4, 5]))
    assert found(cache, 1, 2, 3, 4, 5) == 0
    cache.commit(lease, pack([1, 2, 3]))
    assert found(cache, 1, 2, 3, 4, 5) == 2
    cache.commit(lease, pack([1, 2, 3, 4]))
    assert found(cache, 1, 2, 3, 4, 5) == 4


@pytest.mark.parametrize("n", range(1, 9))
def test_a_hit_leaves_a_token_to_compute(n: int) -> None:
    """However much is stored, at least one token of a prompt is not a hit."""
    for exact in (False, True):
        cache = PrefixCache(pool_blocks=[20], block_size_tokens=2, token_exact_reuse=exact)
        keep(cache, *range(8))
        lease = cache.acquire(NS, pack(range(n)))
        assert lease.cached_tokens == (n - 1 if exact else (n - 1) // 2 * 2)


def test_a_request_may_read_without_storing_and_store_without_reading() -> None:
    """The two switches are independent."""
    cache = cache_of()
    keep(cache, 1, 2)
    silent = cache.acquire(NS, pack([1, 2, 3, 4, 5]), store=False)
    cache.commit(silent, pack([1, 2, 3, 4]))
    assert (silent.cached_tokens, found(cache, 1, 2, 3, 4, 5)) == (2, 2)
    blind = cache.acquire(NS, pack([1, 2, 3, 4, 5]), read=False)
    assert blind.cached_tokens == 0
    cache.commit(blind, pack([1, 2, 3, 4]))
    assert found(cache, 1, 2, 3, 4, 5) == 4
    cache.check()


def test_a_lease_covers_its_whole_prompt() -> None:
    """Matched and new blocks together have room for every token, in prompt order."""
    cache = cache_of()
    keep(cache, 1, 2, 3, 4)
    first = cache.acquire(NS, pack([1, 2, 3, 4, 5]))
    second = cache.acquire(NS, pack([1, 2, 3, 4, 6, 7, 8]))
    assert (first.capacity_tokens, second.capacity_tokens) == (6, 8)
    assert blocks_of(first)[:2] == blocks_of(second)[:2]
    assert not set(blocks_of(first)[2:]) & set(blocks_of(second)[2:])
    assert cache.counts() == PoolCounts(free=7, cached=0, held=5)


def test_an_empty_prompt_is_refused() -> None:
    """There is nothing to compute an answer from."""
    with pytest.raises(EmptyPromptError):
        cache_of().acquire(NS, b"")
    assert found(cache_of()) == 0


def test_room_for_less_than_nothing_is_refused() -> None:
    """Before a block is taken."""
    cache = cache_of()
    with pytest.raises(ConfigError, match="room_tokens = -3"):
        cache.acquire(NS, pack([1, 2]), room_tokens=-3)
    cache.check()
    assert cache.counts().held == 0


def test_half_a_token_is_refused() -> None:
    """Packed prompts are whole tokens."""
    cache = cache_of()
    for look in (cache.acquire, cache.match_length):
        look(NS, pack([1]))
        with pytest.raises(TokenIdError):
            look(NS, b"\x01\x00")


def test_what_can_never_fit_is_told_from_what_does_not_fit_now() -> None:
    """One is refused for good, the other may come again."""
    cache = cache_of(4)
    with pytest.raises(RequestTooLargeError) as too_large:
        cache.acquire(NS, pack(range(9)))
    assert (too_large.value.needed, too_large.value.pool_blocks) == (5, 4)
    lease = hold(cache, *range(8))
    with pytest.raises(PoolExhaustedError) as exhausted:
        cache.acquire(NS, pack(range(10, 13)))
    assert (exhausted.value.needed, exhausted.value.free, exhausted.value.held) == (2, 0, 4)
    cache.release(lease)
    assert cache.acquire(NS, pack(range(10, 13))).cached_tokens == 0


def test_a_refused_request_takes_and_touches_nothing() -> None:
    """Neither blocks nor pins nor recency, nor a tree of its own."""
    cache = cache_of(5)
    keep(cache, 1, 2)
    keep(cache, 3, 4)
    held = hold(cache, 5, 6, 7, 8)
    for namespace in (NS, Namespace(salt="x")):
        with pytest.raises(PoolExhaustedError):
            cache.acquire(namespace, pack([1, 2, 9, 9, 9, 9, 9]))
    cache.check()
    assert cache.counts() == PoolCounts(free=1, cached=2, held=2)
    assert cache.evict(1) == 1
    assert (found(cache, 1, 2, 0), found(cache, 3, 4, 0)) == (0, 2)
    cache.release(held)


def test_equal_requests_end_up_with_one_copy() -> None:
    """Who commits second takes over the blocks of the first and gives its own back."""
    cache = cache_of(12)
    first, second = (cache.acquire(NS, pack([1, 2, 3, 4, 5])) for _ in range(2))
    assert cache.counts().held == 6
    cache.commit(first, pack([1, 2, 3, 4, 5]))
    cache.commit(second, pack([1, 2, 3, 4, 5]))
    assert cache.counts().held == 4
    assert blocks_of(first)[:2] == blocks_of(second)[:2]
    assert blocks_of(first)[2] != blocks_of(second)[2]
    cache.release(first)
    assert cache.evict(4) == 0
    cache.release(second)
    cache.check()
    assert cache.counts() == PoolCounts(free=10, cached=2, held=0)


def test_requests_that_part_late_merge_what_they_share() -> None:
    """A commit takes over the shared part of an edge and adds the rest as a branch."""
    cache = cache_of(12)
    first = cache.acquire(NS, pack([1, 2, 3, 4, 5, 6]))
    second = cache.acquire(NS, pack([1, 2, 3, 4, 7, 8]))
    cache.commit(first, pack([1, 2, 3, 4, 5, 6]))
    cache.commit(second, pack([1, 2, 3, 4, 7, 8]))
    cache.check()
    assert cache.counts().held == 4
    assert found(cache, 1, 2, 3, 4, 5, 6, 0) == found(cache, 1, 2, 3, 4, 7, 8, 0) == 6


def test_a_lease_keeps_its_path_when_its_node_is_split() -> None:
    """A later request that parts inside the pinned edge changes nothing for the lease."""
    cache = cache_of(12)
    lease = hold(cache, *range(8))
    before = lease.spans()
    other = hold(cache, 0, 1, 9, 9)
    cache.check()
    cache.release(other)
    assert cache.evict(12) == 1
    assert lease.spans() == before
    cache.commit(lease, pack(range(8)))
    cache.release(lease)
    assert cache.evict(12) == 4
    cache.check()


def test_a_node_that_several_leases_end_at_can_be_split() -> None:
    """The upper half is pinned once, by the lower one, however many leases end there."""
    cache = cache_of(12)
    leases = [hold(cache, *range(9)) for _ in range(3)]
    assert leases[0].node is leases[1].node is leases[2].node
    assert leases[0].node.n_blocks == 4
    leases.append(hold(cache, 0, 1, 9, 9))
    cache.check()
    for lease in leases:
        cache.release(lease)
        cache.check()
    assert cache.evict(12) == 5


def test_releasing_twice_is_harmless_and_counted() -> None:
    """A second release cannot free what another request holds by now."""
    cache = cache_of(4)
    first = cache.acquire(NS, pack([1, 2, 3]))
    cache.release(first)
    second = cache.acquire(NS, pack([4, 5, 6]))
    cache.release(first)
    cache.check()
    assert cache.stats().double_releases == 1
    assert cache.counts().held == 2
    cache.release(second)


def test_a_released_or_foreign_lease_cannot_be_used() -> None:
    """It has no blocks any more, or they are another cache's."""
    cache, other = cache_of(), cache_of()
    foreign = other.acquire(NS, pack([1, 2]))
    released = cache.acquire(NS, pack([1, 2]))
    cache.release(released)
    for lease in (released, foreign):
        with pytest.raises(LeaseError):
            cache.extend(lease, 4)
        with pytest.raises(LeaseError):
            cache.commit(lease, pack([1, 2]))
    with pytest.raises(LeaseError):
        cache.release(foreign)
    assert released.capacity_tokens == 0


def test_more_than_there_is_room_for_cannot_be_committed() -> None:
    """KV that has no block was never written."""
    cache = cache_of()
    lease = cache.acquire(NS, pack([1, 2, 3]))
    with pytest.raises(LeaseError):
        cache.commit(lease, pack([1, 2, 3, 4, 5]))
    cache.check()


@pytest.mark.parametrize("n_kept", range(11))
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("growth_blocks", [0, 3])
def test_a_request_that_keeps_a_part_gives_each_other_block_back_once(
    n_kept: int, exact: bool, growth_blocks: int
) -> None:
    """Wherever in a block the kept part and what was stored by others end, the books balance."""
    cache = PrefixCache(
        pool_blocks=[9],
        block_size_tokens=4,
        growth_blocks=growth_blocks,
        token_exact_reuse=exact,
    )
    ids = list(range(10))
    keep(cache, *ids[:5], 99)
    lease = cache.acquire(NS, pack(ids))
    cache.extend(lease, 11, most_tokens=30)
    if n_kept:
        cache.commit(lease, pack(ids[: max(n_kept, lease.cached_tokens)]))
    for _ in range(2):  # giving back twice is harmless
        cache.release(lease)
        cache.check()
    assert found(cache, *ids, 99) >= n_kept // 4 * 4
    assert cache.counts().held == 0
    cache.evict(9)
    cache.check()
    assert cache.counts().free == 9


def test_each_layer_group_has_blocks_of_its_own() -> None:
    """Every position has one block in each group, and all groups move together."""
    cache = PrefixCache(pool_blocks=[9, 6], block_size_tokens=2, growth_blocks=0)
    keep(cache, 1, 2, 3, 4)
    lease = hold(cache, 1, 2, 3, 4, 5)
    assert len(blocks_of(lease, 0)) == len(blocks_of(lease, 1)) == 3
    assert cache.counts(0) == PoolCounts(free=6, cached=0, held=3)
    assert cache.counts(1) == PoolCounts(free=3, cached=0, held=3)
    assert (cache.longest_free_run(0), cache.longest_free_run(1)) == (6, 3)
    with pytest.raises(PoolExhaustedError):
        cache.acquire(NS, pack(range(10, 18)))
    cache.release(lease)
    assert cache.acquire(NS, pack(range(10, 22))).capacity_tokens == 12
    cache.check()


def test_counters_tell_hits_in_tokens() -> None:
    """Reading requests are counted when they are admitted, once."""
    cache = cache_of(4)
    keep(cache, 1, 2, 3)
    keep(cache, 1, 2, 3, 4)
    cache.release(cache.acquire(NS, pack([1, 2, 3]), read=False))
    lookups = cache.stats().lookups
    assert (lookups.requests, lookups.tokens, lookups.hit_tokens) == (2, 7, 2)


@pytest.mark.parametrize(
    ("pool_blocks", "block_size_tokens", "growth_blocks"),
    [([], 2, 0), ([0], 2, 0), ([4, -1], 2, 0), ([4], 0, 0), ([4], 2, -1)],
)
def test_settings_that_cannot_work_are_refused(
    pool_blocks: Sequence[int], block_size_tokens: int, growth_blocks: int
) -> None:
    """At the start, not at the first request."""
    with pytest.raises(ConfigError):
        PrefixCache(
            pool_blocks=pool_blocks,
            block_size_tokens=block_size_tokens,
            growth_blocks=growth_blocks,
        )
