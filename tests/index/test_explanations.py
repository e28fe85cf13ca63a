"""Why a request finds no more of its prompt, and where."""

from __future__ import annotations

import pytest

from prefixcache.index import Miss, MissReason, Namespace, PrefixCache, Scope, pack
from tests.index.small import NS, cache_of, keep

OTHER = Namespace(salt="other")


def misses(cache: PrefixCache, *ids: int, namespace: Namespace = NS) -> Miss | None:
    """Return why no more is found; looking says the same as taking."""
    explained = cache.explain(namespace, pack(ids))
    lease = cache.acquire(namespace, pack(ids))
    assert lease.miss == explained
    cache.release(lease)
    cache.check()
    return explained


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ((1, 2, 3, 4, 9), None),
        ((1, 2, 3, 4), Miss(MissReason.BELOW_BLOCK, 3)),
        ((1, 2, 3, 4, 9, 9), Miss(MissReason.BELOW_BLOCK, 4)),
        ((1, 2, 3, 9, 9), Miss(MissReason.BELOW_BLOCK, 3)),
        ((1, 2, 3, 4, 9, 9, 9), Miss(MissReason.NOTHING_STORED, 4)),
        ((1, 2, 9, 9, 9), Miss(MissReason.DIVERGED, 2)),
        ((9, 9, 9), Miss(MissReason.NOTHING_STORED, 0)),
        ((9,), None),
    ],
)
def test_what_was_stored_decides(ids: tuple[int, ...], expected: Miss | None) -> None:
    """Of (1 2 3 4), in blocks of two tokens that are reused whole."""
    cache = cache_of()
    keep(cache, 1, 2, 3, 4)
    assert misses(cache, *ids) == expected


def test_where_tokens_are_copied_the_first_that_differs_is_named() -> None:
    """A prompt that leaves a block midway has diverged there."""
    cache = PrefixCache(pool_blocks=[12], block_size_tokens=2, growth_blocks=0)
    keep(cache, 1, 2, 3, 4)
    assert misses(cache, 1, 2, 3, 9, 9) == Miss(MissReason.DIVERGED, 3)
    assert misses(cache, 1, 2, 3, 4) is None


def test_what_gave_way_is_told_from_what_never_was() -> None:
    """Also where only the tail went."""
    cache = cache_of()
    keep(cache, 1, 2, 3, 4)
    cache.evict(1)
    assert misses(cache, 1, 2, 3, 4, 5) == Miss(MissReason.EVICTED, 2)
    cache.evict(1)
    assert misses(cache, 1, 2, 3, 4, 5) == Miss(MissReason.EVICTED, 0)
    assert misses(cache, 7, 8, 9) == Miss(MissReason.NOTHING_STORED, 0)


@pytest.mark.parametrize("is_reclaimed", [False, True])
def test_what_was_invalidated_is_told(is_reclaimed: bool) -> None:
    """Whether its blocks have gone or not."""
    cache = cache_of()
    keep(cache, 1, 2)
    cache.invalidate(Scope.namespace(NS))
    if is_reclaimed:
        cache.reclaim()
    assert misses(cache, 1, 2, 3) == Miss(MissReason.OLD_GENERATION, 0)
    assert misses(cache, 7, 8, 9) == Miss(MissReason.NOTHING_STORED, 0)


def test_what_the_tenant_has_elsewhere_is_told() -> None:
    """Under another salt, of its own alone: of other tenants nothing is said."""
    cache = cache_of()
    keep(cache, 1, 2)
    assert misses(cache, 1, 2, 3, namespace=OTHER) == Miss(MissReason.OTHER_NAMESPACE, 0)
    stranger = Namespace(tenant="stranger")
    assert misses(cache, 1, 2, 3, namespace=stranger) == Miss(MissReason.NOTHING_STORED, 0)


def test_a_request_that_does_not_look_says_so() -> None:
    """However much is stored."""
    cache = cache_of()
    keep(cache, 1, 2)
    lease = cache.acquire(NS, pack([1, 2, 3]), read=False)
    assert lease.miss == Miss(MissReason.DISABLED, 0)
