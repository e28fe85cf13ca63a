"""Prompts that tenants share."""

from __future__ import annotations

from itertools import pairwise

import pytest

from prefixcache.index import PrefixCache, Quota, pack
from tests.index.published import T
from tests.index.small import found


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
