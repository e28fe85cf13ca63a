"""Short ways to publish prompts in tests."""

from __future__ import annotations

from prefixcache.index import Namespace, PrefixCache, Published, pack, unpack

T, U = Namespace(tenant="t"), Namespace(tenant="u")


def publish(
    cache: PrefixCache, *ids: int, name: str = "p", tenants: frozenset[str] | None = None
) -> Published:
    """Publish a prompt and read it."""
    published = cache.prompts.publish(name, pack(ids), tenants=tenants)
    read(cache, published)
    return published


def read(cache: PrefixCache, published: Published, n_tokens: int | None = None) -> None:
    """Compute a prompt, or its first `n_tokens`."""
    lease = cache.prompts.acquire(published)
    cache.commit(lease, pack(unpack(published.tokens)[:n_tokens]))
    cache.check()
    cache.release(lease)
    cache.check()
