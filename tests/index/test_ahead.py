"""What is stored after a prefix, and room that costs nobody anything."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache.errors import LeaseError
from prefixcache.index import (
    Lease,
    Namespace,
    PrefixCache,
    Quota,
    Scope,
    pack,
    unpack,
)

A, B = Namespace(tenant="a"), Namespace(tenant="b")


def make(n_blocks: int = 64, **options: object) -> PrefixCache:
    return PrefixCache(pool_blocks=[n_blocks], block_size_tokens=4, **options)  # type: ignore[arg-type]


def store(cache: PrefixCache, namespace: Namespace, ids: Sequence[int]) -> None:
    lease = cache.acquire(namespace, pack(ids))
    cache.commit(lease, pack(ids))
    cache.release(lease)


def after(
    cache: PrefixCache, namespace: Namespace, ids: Sequence[int], most: int = 100
) -> list[int]:
    found = unpack(cache.ahead.continuation(namespace, pack(ids), most))
    cache.check()
    return found


LONG = list(range(100, 120))


def test_what_was_stored_after_a_prefix_is_found_at_every_length() -> None:
    """After each of its prefixes a stored sequence goes on as it did, in whole blocks."""
    cache = make()
    store(cache, A, [*LONG, 1])
    for n in range(1, 20):
        assert after(cache, A, LONG[:n]) == LONG[n:]
        assert after(cache, A, LONG[:n], 3) == LONG[n : n + 3]
    assert after(cache, A, LONG) == []


def test_a_prefix_that_is_not_stored_has_no_continuation() -> None:
    """One other token anywhere, or one too many, and nothing is known."""
    cache = make()
    store(cache, A, LONG)
    for n in range(20):
        assert after(cache, A, [*LONG[:n], 7]) == []
    assert after(cache, A, [*LONG, 1]) == []
    assert after(cache, A, LONG[:3], 0) == []


def test_another_tenants_content_is_never_a_continuation() -> None:
    """Neither another tenant nor another salt of the same one is told what is stored."""
    cache = make()
    store(cache, A, LONG)
    assert after(cache, A, LONG[:5])
    assert after(cache, B, LONG[:5]) == []
    assert after(cache, Namespace(tenant="a", salt="s"), LONG[:5]) == []


@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_where_answers_part_the_one_used_last_is_taken(n: int) -> None:
    """Between blocks and within one, the branch of the latest request goes on."""
    now = [0.0]
    cache = make(clock=lambda: now[0])
    first, second = [*LONG[:n], *[1] * 10], [*LONG[:n], *[2] * 10]
    for ids in (first, second, first, second):
        now[0] += 1
        store(cache, A, [*ids, 0, 0, 0, 0, 0])
        assert after(cache, A, LONG[:n], 5) == ids[n : n + 5]


def test_looking_ahead_changes_nothing() -> None:
    """Recency, counts and what is evicted next stay as they were."""
    now = [0.0]
    cache = make(clock=lambda: now[0])
    for start in (0, 50):
        now[0] += 1
        store(cache, A, range(start, start + 8))
    before = cache.snapshot(), cache.stats(), cache.counts()
    now[0] += 1
    assert after(cache, A, [0, 1]) == [2, 3, 4, 5, 6, 7]
    now[0] -= 1
    assert (cache.snapshot(), cache.stats(), cache.counts()) == before
    cache.evict(2)
    assert after(cache, A, [0, 1]) == []
    assert after(cache, A, [50, 51])


def test_what_was_invalidated_is_no_continuation() -> None:
    """A bump ends it at once, whatever blocks are still there."""
    cache = make()
    store(cache, A, LONG)
    cache.invalidate(Scope.tenant("a"))
    assert after(cache, A, LONG[:5]) == []


def publish(cache: PrefixCache, name: str, ids: Sequence[int], tenants: Sequence[str]) -> None:
    prompt = cache.prompts.publish(name, pack(ids), tenants=frozenset(tenants))
    lease = cache.prompts.acquire(prompt)
    cache.commit(lease, pack(ids))
    cache.release(lease)


def test_a_published_prompt_goes_on_for_those_who_may_use_it() -> None:
    """Its text is known to its tenants alone, and no other prompt's that begins alike."""
    cache = make()
    publish(cache, "one", LONG[:10], ["a"])
    publish(cache, "two", [*LONG[:8], *range(200, 212)], ["b"])
    assert after(cache, A, LONG[:5]) == LONG[5:10]
    assert after(cache, A, LONG[:8]) == LONG[8:10]
    assert after(cache, A, LONG[:10]) == []
    assert after(cache, B, LONG[:8]) == list(range(200, 212))
    assert after(cache, B, LONG[:10]) == []
    assert after(cache, Namespace(tenant="c"), LONG[:5]) == []


def test_a_tenants_own_goes_on_after_a_published_prompt() -> None:
    """Behind the mount each tenant finds what it said itself, never what another one did."""
    cache = make()
    publish(cache, "one", LONG[:10], ["a", "b"])
    mine, theirs = [*LONG[:10], *[1] * 12], [*LONG[:10], *[2] * 12]
    store(cache, A, mine)
    store(cache, B, theirs)
    assert after(cache, A, LONG[:10]) == [1] * 10
    assert after(cache, B, LONG[:10]) == [2] * 10
    assert after(cache, A, LONG[:8]) in (LONG[8:10], [*LONG[8:10], *[1] * 10])
    assert after(cache, A, [*LONG[:10], 2]) == []


BITS = st.lists(st.integers(0, 1), min_size=1, max_size=14)


@given(
    stored=st.lists(st.tuples(st.sampled_from("ab"), BITS), max_size=12),
    asked=BITS,
    most=st.integers(1, 9),
)
def test_a_continuation_was_really_stored_by_the_tenant(
    stored: list[tuple[str, list[int]]], asked: list[int], most: int
) -> None:
    """Whatever is stored, what comes is how some stored sequence of the tenant goes on."""
    cache = PrefixCache(pool_blocks=[500], block_size_tokens=2)
    for tenant, ids in stored:
        store(cache, Namespace(tenant=tenant), ids)
    found = after(cache, A, asked, most)
    whole = [ids[: len(ids) // 2 * 2] for tenant, ids in stored if tenant == "a"]
    longer = [ids for ids in whole if ids[: len(asked)] == asked and len(ids) > len(asked)]
    assert bool(found) == bool(longer)
    assert not found or any(ids[len(asked) :][: len(found)] == found for ids in longer)
    assert len(found) <= most


def lease_of(cache: PrefixCache, n_tokens: int, namespace: Namespace = A) -> Lease:
    return cache.acquire(namespace, pack(range(1000, 1000 + n_tokens)))


def test_room_ahead_is_made_of_free_blocks_alone() -> None:
    """What is cached, and what others hold, stays; there is as much room as is free."""
    cache = make(6, growth_blocks=0)
    store(cache, A, range(8))
    lease = lease_of(cache, 4)
    assert cache.ahead.reserve(lease, 40) == 16
    cache.check()
    assert cache.match_length(A, pack([*range(8), 1])) == 8
    assert cache.counts().free == 0


def test_room_ahead_that_was_not_needed_can_be_had_by_others() -> None:
    """Once settled it is slack; what is needed stays."""
    cache = make(6, growth_blocks=0)
    lease = lease_of(cache, 4)
    assert cache.ahead.reserve(lease, 24) == 24
    cache.ahead.settle(lease, 7)
    cache.check()
    other = cache.acquire(B, pack(range(16)))
    cache.check()
    assert lease.capacity_tokens == 8
    assert other.capacity_tokens == 16


def test_room_ahead_keeps_within_a_quota() -> None:
    """A tenant's own cached blocks count, and are not given up for it."""
    cache = make(16, growth_blocks=0, quotas={"a": Quota(max_blocks=4)})
    store(cache, A, range(8))
    lease = lease_of(cache, 4)
    assert cache.ahead.reserve(lease, 40) == 8
    cache.check()
    cache.ahead.settle(lease, 4)
    cache.check()
    assert cache.match_length(A, pack([*range(8), 1])) == 8


def test_room_ahead_needs_a_live_lease() -> None:
    """A released lease gets none."""
    cache = make()
    lease = lease_of(cache, 4)
    cache.release(lease)
    with pytest.raises(LeaseError):
        cache.ahead.reserve(lease, 8)
    with pytest.raises(LeaseError):
        cache.ahead.settle(lease, 8)
