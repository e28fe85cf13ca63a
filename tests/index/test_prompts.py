"""Prompts that tenants share."""

from __future__ import annotations

from itertools import pairwise

import pytest

from prefixcache.errors import ConfigError, PromptRetiredError
from prefixcache.index import SYSTEM_TENANT, Miss, MissReason, PrefixCache, Quota, Scope, pack
from tests.index.published import T, U, publish, read
from tests.index.small import found, keep


def cache_of(n_blocks: int = 24, *, exact: bool = True) -> PrefixCache:
    return PrefixCache(
        pool_blocks=[n_blocks],
        block_size_tokens=2,
        growth_blocks=0,
        token_exact_reuse=exact,
        published_quota=Quota(max_blocks=n_blocks),
        retained_blocks=n_blocks,
    )


@pytest.mark.parametrize("n_tokens", range(2, 8))
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 7])
def test_a_prompt_of_any_length_is_found_to_its_last_token(n_tokens: int, chunk: int) -> None:
    """Half a block at its end is shared too, however the prompt was read."""
    cache = cache_of()
    ids = list(range(1, n_tokens + 1))
    published = cache.prompts.publish("p", pack(ids))
    lease = cache.prompts.acquire(published)
    for _, end in pairwise([0, *range(chunk, n_tokens, chunk), n_tokens]):
        cache.commit(lease, pack(ids[:end]))
        cache.check()
    cache.release(lease)
    assert cache.prompts.is_read(published)
    request = cache.acquire(T, pack([*ids, 90, 91, 92]))
    assert request.cached_tokens == n_tokens
    assert sum(span.n_blocks for span in request.spans()) * 2 == request.capacity_tokens
    cache.commit(request, pack([*ids, 90, 91, 92]))
    cache.release(request)
    cache.check()
    assert found(cache, *ids, 90, 91, 92, 93, namespace=T) == (n_tokens + 3) // 2 * 2


def test_a_prompt_may_begin_like_another() -> None:
    """Each is read to its end and found, and what they share is stored once."""
    cache = cache_of()
    prompts = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6, 7), (1, 2), (1, 2, 3, 9)]
    for n, ids in enumerate(prompts):
        publish(cache, *ids, name=f"p{n}")
    assert cache.prompts.unread() == []
    assert [found(cache, *ids, 0, namespace=T) for ids in prompts] == [5, 7, 2, 4]
    assert cache.counts().cached == 6


def test_a_prompt_is_read_on_where_a_reading_ended() -> None:
    """What an aborted reading has stored is not computed again, and the rest goes below it."""
    cache = cache_of()
    published = cache.prompts.publish("p", pack(range(7)))
    read(cache, published, 3)
    assert not cache.prompts.is_read(published)
    assert found(cache, *range(8), namespace=T) == 2
    read(cache, published)
    assert cache.prompts.is_read(published)
    assert found(cache, *range(8), namespace=T) == 7


def test_versions_of_equal_tokens_are_retired_one_by_one() -> None:
    """While one of them lives its KV is kept, though another was the first to be read."""
    for ids in ((1, 2, 3, 4), (1, 2, 3)):
        cache = cache_of()
        versions = [publish(cache, *ids) for _ in range(3)]
        assert [published.version for published in versions] == [1, 2, 3]
        for published in versions[:2]:
            cache.prompts.retire(published)
            cache.check()
            assert cache.prompts.is_read(versions[2])
            assert found(cache, *ids, 0, namespace=T) == len(ids)
        cache.prompts.retire(versions[2])
        cache.check()
        assert found(cache, *ids, 0, namespace=T) == 0
        assert cache.counts().free == 24


@pytest.mark.parametrize(
    ("tenants", "allowed"),
    [(None, {"t", "u"}), (frozenset({"u"}), {"u"}), (frozenset(), set())],
)
def test_only_chosen_tenants_find_a_prompt(
    tenants: frozenset[str] | None, allowed: set[str]
) -> None:
    """None is all of them, an empty set is nobody; others see neither it nor its end."""
    cache = cache_of()
    published = publish(cache, 1, 2, 3, tenants=tenants)
    for name in (T, U):
        expected = 3 if name.tenant in allowed else 0
        assert found(cache, 1, 2, 3, 4, namespace=name) == expected
        lease = cache.acquire(name, pack([1, 2, 3, 4]))
        assert lease.cached_tokens == expected
        cache.release(lease)
    cache.prompts.retire(published)
    for name in (T, U):
        reason = MissReason.RETIRED_VERSION if name.tenant in allowed else MissReason.NOTHING_STORED
        assert cache.explain(name, pack([1, 2, 3, 4])) == Miss(reason, 0)


def test_a_tenant_that_is_invalidated_takes_nothing_from_the_system() -> None:
    """What is read of a live prompt stays, though it is not retained yet."""
    cache = cache_of()
    published = cache.prompts.publish("p", pack(range(6)))
    read(cache, published, 4)
    lease = cache.acquire(T, pack(range(9)))
    cache.invalidate(Scope.tenant("t"))
    cache.release(lease)
    cache.check()
    assert found(cache, *range(9), namespace=U) == 4


def test_a_request_behind_a_prompt_ends_after_its_tenant_was_invalidated() -> None:
    """Its blocks go, the prompt's stay, and what it looked up is counted once."""
    cache = cache_of()
    publish(cache, 1, 2)
    before = cache.stats().lookups.requests
    for name in (T, U):
        lease = cache.acquire(name, pack([1, 2, 3, 4, 5]))
        cache.commit(lease, pack([1, 2, 3, 4, 5]))
        cache.invalidate(Scope.tenant(name.tenant))
        cache.release(lease)
        cache.check()
    assert cache.counts().cached == 1
    assert cache.stats().lookups.requests == before + 2


@pytest.mark.parametrize("scope", [Scope.tenant(SYSTEM_TENANT), Scope.model("default")])
def test_published_blocks_in_use_go_when_their_tree_was_invalidated(scope: Scope) -> None:
    """They are nobody's when the last request that passes through them ends."""
    cache = cache_of()
    publish(cache, 1, 2, 3, 4, 5)
    leases = [cache.acquire(name, pack([1, 2, 3, 4, 5, 6])) for name in (T, T, U)]
    cache.invalidate(scope)
    cache.reclaim()
    for lease in leases:
        cache.release(lease)
        cache.check()
    assert cache.counts().free == 24


def test_what_hangs_from_an_invalidated_prompt_goes_with_it() -> None:
    """KV that was computed after the system's old blocks is not found behind its new ones."""
    cache = cache_of()
    published = publish(cache, 1, 2, 3, 4)
    ids = [1, 2, 3, 4, 5, 6]
    done = cache.acquire(T, pack(ids))
    cache.commit(done, pack(ids))
    cache.release(done)
    running = cache.acquire(T, pack([*ids, 7, 8, 9]))
    cache.invalidate(Scope.tenant(SYSTEM_TENANT))
    cache.commit(running, pack([*ids, 7, 8, 9]))
    assert running.n_stored == 3
    cache.check()
    read(cache, published)
    assert found(cache, *ids, 7, 8, 9, namespace=T) == 4
    cache.release(running)
    cache.reclaim()
    cache.check()
    assert cache.counts().cached == 2


def test_a_retired_version_cannot_be_read() -> None:
    """The error names it; retiring it again is harmless, and the next version is another."""
    cache = cache_of()
    first = publish(cache, 1, 2)
    cache.prompts.retire(first)
    cache.prompts.retire(first)
    with pytest.raises(PromptRetiredError, match="version 1 of prompt 'p'"):
        cache.prompts.acquire(first)
    assert publish(cache, 1, 2).version == 2


def test_nobody_joins_those_who_read_what_was_invalidated() -> None:
    """While a request runs on old blocks of a prompt, the next one of its tenant has the new."""
    cache = cache_of()
    published = publish(cache, 1, 2, 3, 4)
    running = cache.acquire(T, pack([1, 2, 3, 4, 9, 9]))
    cache.invalidate(Scope.tenant(SYSTEM_TENANT))
    read(cache, published)
    joins = cache.acquire(T, pack([1, 2, 3, 4, 8, 8]))
    cache.check()
    assert joins.cached_tokens == 4
    assert joins.spans()[0].first != running.spans()[0].first
    cache.release(running)
    cache.check()
    assert found(cache, 1, 2, 3, 4, 8, namespace=T) == 4


def test_a_request_keeps_its_blocks_though_its_prompt_is_retired() -> None:
    """It stores nothing more; nobody matches it, and all goes when it ends."""
    cache = cache_of()
    published = publish(cache, 1, 2, 3)
    lease = cache.acquire(T, pack([1, 2, 3, 4, 5, 6]))
    cache.commit(lease, pack([1, 2, 3, 4]))
    before = lease.spans()
    cache.prompts.retire(published)
    cache.prompts.retire(published)
    cache.reclaim()
    cache.commit(lease, pack([1, 2, 3, 4, 5, 6]))
    assert lease.spans() == before
    assert found(cache, 1, 2, 3, 4, 5, namespace=T) == 0
    cache.release(lease)
    cache.check()
    assert cache.counts().free == 24


def test_what_a_tenant_had_by_itself_stays_its_own() -> None:
    """A prompt that is published later is shared beside it, and may be retired again."""
    cache = cache_of()
    keep(cache, 1, 2, 3, 4, 5, 6, namespace=T)
    published = publish(cache, 1, 2, 3, 4)
    assert found(cache, 1, 2, 3, 4, 5, 6, 7, namespace=T) == 6
    cache.prompts.retire(published)
    assert found(cache, 1, 2, 3, 4, 5, 6, 7, namespace=T) == 6
    assert found(cache, 1, 2, 3, 4, 5, 6, 7, namespace=U) == 0


def test_tenants_share_nothing_behind_a_prompt() -> None:
    """Each has a mount and only what it stored itself below."""
    cache = cache_of()
    publish(cache, 1, 2)
    keep(cache, 1, 2, 3, 4, namespace=T)
    assert found(cache, 1, 2, 3, 4, 5, namespace=T) == 4
    assert found(cache, 1, 2, 3, 4, 5, namespace=U) == 2
    assert cache.tenant_stats("t").cached_blocks == 1


def test_a_prompt_outlasts_what_tenants_cache() -> None:
    """Only when nothing else is left does it give way; then it is to be read again."""
    cache = cache_of(12)
    published = publish(cache, 1, 2, 3, 4, 5)
    for n in range(10, 40):
        keep(cache, n, n, n, n, namespace=T)
    assert cache.prompts.unread() == []
    lease = cache.acquire(U, pack(range(100, 122)))
    assert cache.prompts.unread() == [published]
    cache.release(lease)
    read(cache, published)
    assert found(cache, 1, 2, 3, 4, 5, 6, namespace=T) == 5


def test_less_than_a_block_cannot_be_published() -> None:
    """There is nothing that could be shared."""
    with pytest.raises(ConfigError):
        cache_of().prompts.publish("p", pack([1]))


def test_a_prompt_that_is_not_pinned_goes_like_anything_else() -> None:
    """It is found until room is needed, and not retained; an equal one that is pinned keeps it."""
    cache = cache_of(8)
    loose = cache.prompts.publish("p", pack([1, 2, 3, 4, 5]), pin=False, version=7)
    read(cache, loose)
    assert (loose.version, cache.prompts.is_read(loose)) == (7, True)
    assert cache.tenant_stats(SYSTEM_TENANT).retained_blocks == 0
    pinned = publish(cache, 1, 2, 3, 4, 5)
    assert pinned.version == 8
    assert cache.tenant_stats(SYSTEM_TENANT).retained_blocks == 3
    cache.prompts.retire(pinned)
    cache.check()
    assert cache.prompts.is_read(loose)
    assert cache.tenant_stats(SYSTEM_TENANT).retained_blocks == 0
    cache.evict(2)
    assert cache.prompts.cached_tokens(loose) == 2
    assert cache.prompts.unread() == [loose]


def test_blocks_of_pinned_prompts_are_counted_once_where_they_are_shared() -> None:
    """In order of publication: equal ones take nothing more, half a block at the end takes one."""
    cache = cache_of()
    prompts = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 5), (1, 2, 3, 9), (7, 8), (1, 2, 3, 4, 5, 6)]
    for ids in prompts:
        publish(cache, *ids)
    cache.prompts.publish("loose", pack([1, 2, 8, 8]), pin=False)
    assert [n_blocks for _, n_blocks in cache.prompts.pinned()] == [3, 0, 1, 1, 1]
    assert cache.counts().cached == 6
    like = cache.prompts.publish("q", pack([1, 2, 3, 4, 7, 7, 7]))
    assert cache.prompts.blocks_beyond_others(like) == 2
    assert cache.prompts.most_blocks == 24


def test_prompts_that_a_request_begins_with() -> None:
    """Whole ones that its tenant may use, read or not."""
    cache = cache_of()
    every = cache.prompts.publish("all", pack([1, 2, 3]))
    theirs = cache.prompts.publish("u's", pack([1, 2]), tenants=frozenset({"u"}))
    for namespace, prompts in ((T, [every]), (U, [every, theirs])):
        assert cache.prompts.begun_by(namespace, pack([1, 2, 3, 4])) == prompts
    assert cache.prompts.begun_by(T, pack([1, 2])) == []


def test_who_waits_for_a_reading_of_the_system_goes_on_as_its_waiter() -> None:
    """A second reading of the same tokens waits, and takes what the first has stored."""
    cache = cache_of()
    first, second = (cache.prompts.publish(name, pack(range(1, 7))) for name in "ab")
    lease = cache.prompts.acquire(first)
    waiter = cache.twins.wait(second.namespace, second.tokens)
    assert waiter is not None
    cache.commit(lease, first.tokens)
    assert waiter.is_ready
    other = cache.prompts.acquire(second, waiter=waiter)
    assert other.cached_tokens == 5
    cache.commit(other, second.tokens)
    assert other.written_tokens == 0
    for each in (lease, other):
        cache.release(each)
    cache.check()
