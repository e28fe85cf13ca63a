"""What hangs from published prompts in the trees of tenants."""

from __future__ import annotations

import pytest

from prefixcache.index import SYSTEM_TENANT, Namespace, PrefixCache, Quota, Scope, pack
from tests.index.published import T, U, publish, read
from tests.index.small import found, keep


def cache_of() -> PrefixCache:
    return PrefixCache(
        pool_blocks=[24],
        block_size_tokens=2,
        growth_blocks=0,
        published_quota=Quota(max_blocks=24),
    )


@pytest.mark.parametrize("other", [{"model": "m"}, {"adapter": "a"}, {"kv_format": "f"}])
def test_a_prompt_is_for_one_model_adapter_and_format(other: dict[str, str]) -> None:
    """KV of another one cannot be used, in either direction."""
    cache = cache_of()
    publish(cache, 1, 2, 3)
    name = Namespace(tenant="t", **other)
    assert found(cache, 1, 2, 3, 4, namespace=name) == 0
    assert found(cache, 1, 2, 3, 4, namespace=Namespace(tenant="t", salt="s")) == 3
    like = Namespace(**other)
    theirs = cache.prompts.publish("theirs", pack([5, 6, 7]), like=like)
    read(cache, theirs)
    assert found(cache, 5, 6, 7, 8, namespace=name) == 3
    assert found(cache, 5, 6, 7, 8, namespace=T) == 0


def test_a_use_by_any_tenant_counts_for_the_prompt() -> None:
    """Its blocks are worth what all of them make of it."""
    cache = cache_of()
    publish(cache, 1, 2, 3, 4)
    for name in (T, U, T):
        keep(cache, 1, 2, 3, 4, 5, namespace=name)
    (tree,) = cache.snapshot(tenant=SYSTEM_TENANT).trees
    assert [node.hits for node in tree.nodes] == [3]


def test_retiring_a_prompt_spares_one_that_it_goes_on_from() -> None:
    """The shorter one is retained on its own."""
    cache = cache_of()
    short = publish(cache, 1, 2, name="short")
    long = publish(cache, 1, 2, 3, 4, name="long")
    cache.prompts.retire(long)
    cache.check()
    assert cache.prompts.is_read(short)
    assert cache.counts().cached == 1


def test_of_equal_matches_the_published_one_is_taken() -> None:
    """What the tenant had stored before is left to be given up."""
    cache = cache_of()
    keep(cache, 1, 2, 3, 4, namespace=T)
    publish(cache, 1, 2, 3, 4)
    lease = cache.acquire(T, pack([1, 2, 3, 4, 5]))
    assert lease.cached_tokens == 4
    assert cache.tenant_stats("t").held_blocks == 1
    assert cache.tenant_stats("t").cached_blocks == 2
    cache.release(lease)


def test_what_was_stored_while_a_prompt_was_read_is_found_afterwards() -> None:
    """It hangs from where the prompt had come to, and stays the tenant's own."""
    cache = cache_of()
    published = cache.prompts.publish("p", pack([1, 2, 3, 4, 5, 6]))
    read(cache, published, 2)
    keep(cache, 1, 2, 3, 4, 9, 9, namespace=T)
    read(cache, published)
    lease = cache.acquire(T, pack([1, 2, 3, 4, 9, 9, 0]))
    cache.check()
    assert lease.cached_tokens == 6
    assert cache.tenant_stats("t").held_blocks == 3
    cache.release(lease)
    cache.check()


def test_a_tenants_own_blocks_come_and_go_beside_those_below_a_prompt() -> None:
    """Its tree lives as long as anything hangs from it."""
    cache = cache_of()
    publish(cache, 1, 2)
    keep(cache, 9, 9, namespace=T)
    keep(cache, 1, 2, 3, 4, namespace=T)
    assert cache.evict(1) == 1
    cache.check()
    assert found(cache, 9, 9, 9, namespace=T) == 0
    assert found(cache, 1, 2, 3, 4, 5, namespace=T) == 4
    keep(cache, 1, 2, 3, 4, 5, 6, namespace=T)
    assert cache.evict(2) == 2
    cache.check()


def test_what_hung_from_a_prompt_goes_with_its_tenant() -> None:
    """The prompt itself stays."""
    cache = cache_of()
    publish(cache, 1, 2)
    for ids in ((1, 2, 3, 4), (1, 2, 5, 6), (7, 8)):
        keep(cache, *ids, namespace=T)
    cache.invalidate(Scope.tenant("t"))
    assert cache.reclaim() == 3
    cache.check()
    assert found(cache, 1, 2, 3, namespace=T) == 2


def test_what_hangs_from_a_prompt_outlives_its_blocks() -> None:
    """Once the prompt is read again it is found again, though all of the system's tree had gone."""
    cache = PrefixCache(
        pool_blocks=[4], block_size_tokens=2, growth_blocks=0, published_quota=Quota(max_blocks=4)
    )
    cache.set_quota("t", Quota(reserved_blocks=1))
    published = publish(cache, 1, 2)
    keep(cache, 1, 2, 3, 4, namespace=T)
    keep(cache, *range(10, 16), namespace=U)  # needs the prompt's block too
    cache.check()
    assert not cache.prompts.is_read(published)
    cache.invalidate(Scope.tenant("u"))
    read(cache, published)
    assert found(cache, 1, 2, 3, 4, 5, namespace=T) == 4


def test_a_system_tree_goes_with_its_last_mount() -> None:
    """An empty tree is kept for what refers to it, and no longer."""
    cache = PrefixCache(
        pool_blocks=[4], block_size_tokens=2, growth_blocks=0, published_quota=Quota(max_blocks=4)
    )
    publish(cache, 1, 2)
    keep(cache, 1, 2, 3, 4, namespace=T)
    keep(cache, *range(10, 18), namespace=U)
    cache.check()
    assert [tree.namespace.tenant for tree in cache.snapshot().trees] == ["u"]
