"""The index by itself: two tenants share a published prompt and nothing else. No model, no torch.

python examples/tenants.py
"""

from __future__ import annotations

from prefixcache.index import Lease, Namespace, PrefixCache, Published, Quota, pack

SYSTEM_PROMPT = list(range(1000, 1090))  # 90 token ids: five blocks of 16 and a part of one
TENANTS = ("bakery", "bank")


def publish(cache: PrefixCache) -> Published:
    """Share the system prompt, and let somebody compute it once."""
    published = cache.prompts.publish("assistant", pack(SYSTEM_PROMPT))
    lease = cache.prompts.acquire(published)
    cache.commit(lease, published.tokens)  # its KV has been written to lease.spans()
    cache.release(lease)
    return published


def serve(cache: PrefixCache, tenant: str, prompt: list[int]) -> Lease:
    """Serve one request of a tenant as an engine does, less the model."""
    lease = cache.acquire(Namespace(tenant=tenant), pack(prompt))
    cache.commit(lease, pack(prompt))  # everything from lease.cached_tokens on has been computed
    cache.release(lease)
    return lease


def main() -> None:
    """Show who finds what."""
    cache = PrefixCache(
        pool_blocks=[64],
        quotas={"bank": Quota(reserved_blocks=24)},
        published_quota=Quota(reserved_blocks=8, max_blocks=8),
    )
    published = publish(cache)
    questions = {tenant: [*SYSTEM_PROMPT, *range(n, n + 40)] for n, tenant in enumerate(TENANTS)}
    for name in ("first", "again"):
        for tenant in TENANTS:
            lease = serve(cache, tenant, questions[tenant])
            print(f"{tenant:7} {name}: {lease.cached_tokens} of 130 tokens cached")
    stolen = cache.acquire(Namespace(tenant="bank"), pack(questions["bakery"]))
    print(f"bank    with the bakery's prompt: {stolen.cached_tokens} cached, {stolen.miss}")
    cache.release(stolen)
    cache.prompts.retire(published)
    print(f"after the prompt was retired: {cache.explain(stolen.namespace, pack(SYSTEM_PROMPT))}")
    for tenant in TENANTS:
        stats = cache.tenant_stats(tenant)
        n_hit = stats.lookups.hit_tokens
        print(f"{tenant:7} has {stats.cached_blocks} blocks, {n_hit} hit tokens so far")
    print(cache.counts(), "longest free run", cache.longest_free_run())


if __name__ == "__main__":
    main()
