"""Prefixes that left the device: they stay known, come back, and go when their copy is lost."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from prefixcache.index import BlockEvent, Lease, Namespace, PrefixCache, Quota, Scope, pack, unpack
from prefixcache.types import PoolCounts
from tests.index.machines import run_machine
from tests.index.published import publish, read
from tests.index.reference import Ids
from tests.index.small import NS, found
from tests.index.test_machine import IDS, NAMES, SCOPES, TokenExactMachine


class FakeTier:
    """Keeps the ids of what it was given; refuses when `is_full`."""

    def __init__(self) -> None:
        self.copies: dict[int, list[int]] = {}
        self.is_full = False
        self.n_demoted = 0
        self._handles = count()

    def demote(self, event: BlockEvent) -> int | None:
        if self.is_full:
            return None
        handle = next(self._handles)
        self.n_demoted += 1
        self.copies[handle] = unpack(event.token_ids)
        return handle

    def forget(self, handle: object) -> None:
        assert isinstance(handle, int)
        del self.copies[handle]


@pytest.fixture
def tier() -> FakeTier:
    return FakeTier()


@pytest.fixture
def cache(tier: FakeTier) -> PrefixCache:
    return PrefixCache(
        pool_blocks=[8],
        block_size_tokens=2,
        growth_blocks=0,
        token_exact_reuse=False,
        published_quota=Quota(max_blocks=8),
        lower_tier=tier,
    )


def run(cache: PrefixCache, *ids: int) -> Lease:
    lease = cache.acquire(NS, pack(ids))
    cache.commit(lease, pack(ids))
    cache.release(lease)
    cache.check()
    return lease


def away_ids(cache: PrefixCache, tier: FakeTier, lease: Lease, ids: Ids) -> list[int]:
    """Return the ids of what `lease` could load, as the tier has them."""
    known: list[int] = []
    for handle, first, n_blocks, start in cache.copies.away(lease, pack(ids)):
        assert isinstance(handle, int)
        size = cache.block_size_tokens
        part = tier.copies[handle][first * size : (first + n_blocks) * size]
        assert tuple(part) == ids[start * size : (start + n_blocks) * size]
        known += part
    return known


def test_what_is_given_up_stays_known(cache: PrefixCache, tier: FakeTier) -> None:
    """Its blocks are free, its ids are the tier's, and the next request is told."""
    run(cache, 1, 1, 2, 2, 3, 3)
    assert cache.evict(8) == 3
    cache.check()
    assert cache.counts() == PoolCounts(free=8, cached=0, held=0)
    assert found(cache, 1, 1, 2, 2, 3, 3, 0) == 0
    lease = cache.acquire(NS, pack([1, 1, 2, 2, 3, 3, 4]))
    assert lease.cached_tokens == 0
    assert away_ids(cache, tier, lease, (1, 1, 2, 2, 3, 3, 4)) == [1, 1, 2, 2, 3, 3]


def test_a_tail_can_leave_alone(cache: PrefixCache, tier: FakeTier) -> None:
    """What stays is matched, what left comes next."""
    run(cache, 1, 1, 2, 2, 3, 3)
    assert cache.evict(1) == 1
    assert cache.evict(1) == 1
    cache.check()
    assert sorted(tier.copies.values()) == [[2, 2], [3, 3]]
    lease = cache.acquire(NS, pack([1, 1, 2, 2, 3, 3, 4]))
    assert lease.cached_tokens == 2
    assert away_ids(cache, tier, lease, (1, 1, 2, 2, 3, 3, 4)) == [2, 2, 3, 3]


def test_what_is_committed_again_is_on_the_device_again(cache: PrefixCache, tier: FakeTier) -> None:
    """Loaded or computed: the request's own blocks take the place, as far as they go."""
    run(cache, 1, 1, 2, 2, 3, 3)
    cache.evict(8)
    lease = run(cache, 1, 1, 2, 2, 9, 9)
    assert lease.cached_tokens == 0
    assert found(cache, 1, 1, 2, 2, 3, 3, 0) == 4
    assert found(cache, 1, 1, 2, 2, 9, 9, 0) == 6
    again = cache.acquire(NS, pack([1, 1, 2, 2, 3, 3, 0]))
    assert away_ids(cache, tier, again, (1, 1, 2, 2, 3, 3, 0)) == [3, 3]


def test_leaving_again_needs_no_second_copy(cache: PrefixCache, tier: FakeTier) -> None:
    """What came back has its copy still."""
    run(cache, 1, 1, 2, 2)
    cache.evict(8)
    run(cache, 1, 1, 2, 2)
    assert cache.evict(8) == 2
    cache.check()
    assert list(tier.copies.values()) == [[1, 1, 2, 2]]


def test_a_lost_copy_takes_what_was_below_it(cache: PrefixCache, tier: FakeTier) -> None:
    """Nothing is known that could not be had; the tier is told of what else it may drop."""
    run(cache, 1, 1, 2, 2)
    run(cache, 1, 1, 2, 2, 3, 3)
    cache.evict(1)
    cache.evict(8)
    (top,) = [handle for handle, ids in tier.copies.items() if ids[0] == 1]
    del tier.copies[top]
    cache.copies.forget(top)
    cache.check()
    assert tier.copies == {}
    cache.copies.forget(top)
    assert cache.snapshot().trees == []


def test_a_lost_copy_of_what_is_on_the_device_costs_nothing(
    cache: PrefixCache, tier: FakeTier
) -> None:
    """It is matched as before, and copied anew when it leaves."""
    run(cache, 1, 1, 2, 2)
    cache.evict(8)
    run(cache, 1, 1, 2, 2)
    (handle,) = tier.copies
    del tier.copies[handle]
    cache.copies.forget(handle)
    cache.check()
    assert found(cache, 1, 1, 2, 2, 0) == 4
    cache.evict(8)
    assert list(tier.copies.values()) == [[1, 1, 2, 2]]


def test_what_the_tier_refuses_is_forgotten(cache: PrefixCache, tier: FakeTier) -> None:
    """With all that is below it and away."""
    run(cache, 1, 1, 2, 2, 3, 3)
    cache.evict(1)
    tier.is_full = True
    assert cache.evict(8) == 2
    cache.check()
    assert tier.copies == {}
    assert cache.snapshot().trees == []


def test_what_was_invalidated_is_not_demoted(cache: PrefixCache, tier: FakeTier) -> None:
    """Its blocks go, and the copies of what left before."""
    run(cache, 1, 1, 2, 2, 3, 3)
    cache.evict(1)
    assert tier.n_demoted == 1
    cache.invalidate(Scope.namespace(NS))
    cache.reclaim()
    cache.check()
    assert tier.copies == {}
    assert tier.n_demoted == 1
    assert cache.counts().free == 8


@pytest.mark.parametrize("n_left", [1, 2, 4])
def test_a_published_prompt_comes_back_to_its_last_token(
    cache: PrefixCache, tier: FakeTier, n_left: int
) -> None:
    """While half a block of it is away it counts as unread; then it is read, kept and found."""
    published = publish(cache, 1, 1, 2, 2, 3, 3, 4)
    assert cache.evict(n_left) == n_left
    assert cache.prompts.unread() == [published]
    gone = sorted(token for ids in tier.copies.values() for token in ids)
    assert gone == [1, 1, 2, 2, 3, 3, 4][-2 * n_left + 1 :]
    lease = cache.prompts.acquire(published)
    n_away = sum(part.n_blocks for part in cache.copies.away(lease, published.tokens))
    assert n_away == n_left - 1  # the half is computed again
    cache.release(lease)
    read(cache, published)
    assert cache.prompts.is_read(published)
    assert found(cache, 1, 1, 2, 2, 3, 3, 4, 5) == 6
    assert cache.counts() == PoolCounts(free=4, cached=4, held=0)


def test_what_is_on_the_device_and_goes_for_good_takes_its_copy_along(
    cache: PrefixCache, tier: FakeTier
) -> None:
    """The tier is told that nobody names it any more."""
    run(cache, 1, 1, 2, 2)
    cache.evict(8)
    run(cache, 1, 1, 2, 2)
    cache.invalidate(Scope.namespace(NS))
    assert cache.reclaim() == 2
    assert tier.copies == {}
    cache.check()


def test_what_left_in_parts_comes_back_in_one_commit(cache: PrefixCache, tier: FakeTier) -> None:
    """Each part takes the request's blocks for its own tokens, whatever copy it has."""
    run(cache, 1, 1, 2, 2, 3, 3)
    cache.evict(1)
    cache.evict(8)
    assert len(tier.copies) == 2
    run(cache, 1, 1, 2, 2, 3, 3, 4, 4)
    assert cache.counts() == PoolCounts(free=4, cached=4, held=0)
    assert found(cache, 1, 1, 2, 2, 3, 3, 4, 4, 0) == 8
    assert tier.n_demoted == 2


def test_what_has_a_copy_keeps_it_when_a_request_grows_beyond(
    cache: PrefixCache, tier: FakeTier
) -> None:
    """The copy is of its own blocks; what is added has none yet."""
    run(cache, 1, 1, 2, 2)
    cache.evict(8)
    run(cache, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    assert list(tier.copies.values()) == [[1, 1, 2, 2]]
    cache.evict(8)
    cache.check()
    lease = cache.acquire(NS, pack([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 0]))
    away = away_ids(cache, tier, lease, (1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 0))
    assert away == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_a_copy_that_two_nodes_share_goes_with_the_last_of_them(
    cache: PrefixCache, tier: FakeTier
) -> None:
    """A node that was split shares its copy; one half may go before the other."""
    run(cache, 1, 1, 2, 2, 3, 3)
    cache.evict(8)
    run(cache, 1, 1, 2, 2, 9, 9)
    assert list(tier.copies.values()) == [[1, 1, 2, 2, 3, 3]]
    cache.invalidate(Scope.namespace(NS))
    cache.reclaim()
    cache.check()
    assert tier.copies == {}


def test_what_lies_away_is_told_as_far_as_the_prompt_follows_it(
    cache: PrefixCache, tier: FakeTier
) -> None:
    """Not what is below a node that the prompt leaves midway, though it would go on alike."""
    run(cache, 1, 1, 2, 2, 3, 3)
    cache.evict(1)
    cache.evict(8)
    lease = cache.acquire(NS, pack([1, 1, 3, 3, 0]))
    assert away_ids(cache, tier, lease, (1, 1, 3, 3, 0)) == [1, 1]


class AwayMachine(TokenExactMachine):
    """With a tier below, hits are as honest, and what is said to lie there lies there."""

    token_exact = False

    def __init__(self) -> None:
        super().__init__()
        self.tier = FakeTier()
        self.cache = PrefixCache(
            pool_blocks=self.pool_blocks,
            block_size_tokens=self.block,
            growth_blocks=self.growth_blocks,
            token_exact_reuse=False,
            copy_block=self.kv.copy_block,
            lower_tier=self.tier,
        )

    @rule(is_full=st.booleans())
    def fill_the_tier(self, is_full: bool) -> None:
        self.tier.is_full = is_full

    @rule(data=st.data())
    def lose_a_copy(self, data: st.DataObject) -> None:
        if self.tier.copies:
            handle = data.draw(st.sampled_from(sorted(self.tier.copies)))
            del self.tier.copies[handle]
            self.cache.copies.forget(handle)

    @rule(namespace=NAMES, ids=IDS)
    def what_is_away_is_there(self, namespace: Namespace, ids: Ids) -> None:
        request = self.start(namespace, ids, read=True, store=True)
        if request is None:
            return
        away = away_ids(self.cache, self.tier, request.lease, ids)
        stored = request.lease.cached_tokens
        known = (*ids[:stored], *away)
        assert ids[: len(known)] == known
        assert not away or any(s[: len(known)] == known for s in self.stored[namespace])
        self.commit(request)
        self.live.remove(request)
        self.cache.release(request.lease)

    @rule(scope=st.sampled_from(list(SCOPES)))
    def invalidate_and_reclaim(self, scope: Scope) -> None:
        self.invalidate(scope)
        self.cache.reclaim()

    @invariant()
    def the_tier_keeps_nothing_that_nobody_names(self) -> None:
        named = self.cache._core.locations.handles()
        assert named.keys() == self.tier.copies.keys()


def test_the_index_with_a_tier_below_is_as_honest() -> None:
    """No order of calls gives a wrong hit, a lost copy or a wrong count."""
    run_machine(AwayMachine, 60)
