"""Small caches and requests for the tests of the index."""

from __future__ import annotations

from prefixcache.index import Lease, Namespace, PrefixCache, pack

NS = Namespace()


def cache_of(n_blocks: int = 12, *, growth_blocks: int = 0) -> PrefixCache:
    """Return a cache of blocks of two tokens, with reuse by whole blocks."""
    return PrefixCache(
        pool_blocks=[n_blocks],
        block_size_tokens=2,
        growth_blocks=growth_blocks,
        token_exact_reuse=False,
    )


def hold(cache: PrefixCache, *ids: int, namespace: Namespace = NS) -> Lease:
    """Start a request and commit its prompt."""
    lease = cache.acquire(namespace, pack(ids))
    cache.commit(lease, pack(ids))
    return lease


def keep(cache: PrefixCache, *ids: int, namespace: Namespace = NS) -> None:
    """Run a request to its end."""
    cache.release(hold(cache, *ids, namespace=namespace))
    cache.check()


def found(cache: PrefixCache, *ids: int, namespace: Namespace = NS) -> int:
    """Return how much of a prompt is stored."""
    return cache.match_length(namespace, pack(ids))
