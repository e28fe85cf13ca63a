"""Why a request did not find more."""

from __future__ import annotations

import pytest

from prefixcache.index import Miss, MissReason, Namespace, PrefixCache, Scope, pack
from tests.index.published import T, publish
from tests.index.small import keep


def cache_of(*, exact: bool = True) -> PrefixCache:
    return PrefixCache(
        pool_blocks=[24], block_size_tokens=2, growth_blocks=0, token_exact_reuse=exact
    )


def why(cache: PrefixCache, *ids: int) -> Miss | None:
    """Return the reason, which is the same looked at and acquired."""
    seen = cache.explain(T, pack(ids))
    lease = cache.acquire(T, pack(ids))
    assert lease.miss == seen
    cache.release(lease)
    return seen


def test_all_but_the_last_token_found_is_no_miss() -> None:
    """There is nothing to explain."""
    cache = cache_of()
    keep(cache, 1, 2, 3, 4, namespace=T)
    assert why(cache, 1, 2, 3, 4, 5) is None
    assert why(cache, 1, 2, 3, 4) is None


@pytest.mark.parametrize("n", [0, 1, 2])
def test_what_nobody_stored_begins_where_the_stored_ends(n: int) -> None:
    """At position 0 when nothing is stored at all."""
    cache = cache_of()
    if n:
        keep(cache, *range(2 * n), namespace=T)
    assert why(cache, *range(2 * n), 7, 8, 9) == Miss(MissReason.NOTHING_STORED, 2 * n)


@pytest.mark.parametrize("at", range(1, 6))
def test_a_prompt_diverges_at_exactly_the_first_other_token(at: int) -> None:
    """Inside a block as well as between two."""
    cache = cache_of()
    keep(cache, *range(6), namespace=T)
    assert why(cache, *range(at), 9, 9, 9, 9) == Miss(MissReason.DIVERGED, at)


def test_less_than_a_block_is_no_reason_to_store_or_share() -> None:
    """The rest of a prompt is too short, or without copies what is shared is."""
    cache = cache_of()
    keep(cache, 1, 2, namespace=T)
    assert why(cache, 1, 2, 7, 8) == Miss(MissReason.BELOW_BLOCK, 2)
    whole = cache_of(exact=False)
    keep(whole, 1, 2, 3, 4, namespace=T)
    assert why(whole, 1, 2, 3, 9, 9) == Miss(MissReason.BELOW_BLOCK, 3)


def test_what_was_evicted_is_told_from_what_was_never_there() -> None:
    """From the first block on that is gone."""
    cache = cache_of()
    keep(cache, *range(6), namespace=T)
    cache.evict(2)
    assert why(cache, *range(8)) == Miss(MissReason.EVICTED, 2)
    assert why(cache, 7, 8, 9) == Miss(MissReason.NOTHING_STORED, 0)


def test_what_was_invalidated_is_said_to_be_old() -> None:
    """Before it is reclaimed and after."""
    cache = cache_of()
    keep(cache, *range(6), namespace=T)
    cache.invalidate(Scope.tenant("t"))
    assert why(cache, *range(8)) == Miss(MissReason.OLD_GENERATION, 0)
    cache.reclaim()
    assert why(cache, *range(8)) == Miss(MissReason.OLD_GENERATION, 0)


def test_what_the_tenant_has_in_another_namespace_is_said_to_be_there() -> None:
    """Though nothing else is stored. Another tenant's is not: nobody learns of it."""
    cache = cache_of()
    keep(cache, 1, 2, 3, 4, namespace=Namespace(tenant="t", salt="s"))
    assert why(cache, 1, 2, 3) == Miss(MissReason.OTHER_NAMESPACE, 0)
    cache = cache_of()
    keep(cache, 1, 2, 3, 4, namespace=Namespace(tenant="u"))
    assert why(cache, 1, 2, 3) == Miss(MissReason.NOTHING_STORED, 0)
    keep(cache, 1, 2, 3, 4, namespace=Namespace(tenant="t", salt="s"))
    assert why(cache, 1, 2, 3) == Miss(MissReason.OTHER_NAMESPACE, 0)


def test_a_retired_prompt_is_named_as_the_reason() -> None:
    """For who might have used it."""
    cache = cache_of()
    published = publish(cache, 1, 2, 3, 4)
    assert why(cache, 1, 2, 3, 4, 5) is None
    cache.prompts.retire(published)
    assert why(cache, 1, 2, 3, 4, 5) == Miss(MissReason.RETIRED_VERSION, 0)


def test_who_does_not_look_finds_nothing() -> None:
    """And is not counted as a look-up."""
    cache = cache_of()
    keep(cache, 1, 2, 3, 4, namespace=T)
    lookups = cache.stats().lookups.requests
    lease = cache.acquire(T, pack([1, 2, 3, 4]), read=False)
    assert lease.miss is not None
    assert lease.miss.reason is MissReason.DISABLED
    assert cache.stats().lookups.requests == lookups


def test_reasons_are_counted_by_tenant_and_namespace() -> None:
    """One for each request that did not find all."""
    cache = cache_of()
    keep(cache, *range(6), namespace=T)
    why(cache, 0, 1, 9, 9, 9)
    why(cache, *range(6), 7)
    expected = {MissReason.NOTHING_STORED: 1, MissReason.DIVERGED: 1}
    assert cache.stats().lookups.misses == cache.tenant_stats("t").lookups.misses == expected
    assert [stats.lookups.misses for stats in cache.namespace_stats()] == [expected]
    assert cache.tenant_stats("u").lookups.misses == {}
