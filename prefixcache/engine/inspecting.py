"""The index as an operator sees it: made of what the index knows, within bounds."""

from __future__ import annotations

from prefixcache.control import Inspection, NodeShown, PublicationState, TenantShown, TreeShown
from prefixcache.index import NodeView, PrefixCache, TenantStats, TreeView
from prefixcache.types import ModelInfo

MOST_NODES = 100_000  # of one inspection: some 12 MB on the wire
MOST_TENANTS = 20_000


def inspection(
    cache: PrefixCache,
    group: int,
    info: ModelInfo,
    publications: list[PublicationState],
    *,
    max_nodes: int,
    tenant: str | None,
) -> Inspection:
    """Return trees, tenants and publications as they are now.

    Args:
        group: the layer group whose pool is shown.
        max_nodes: of all trees together; more than MOST_NODES are never shown.
        tenant: whose trees and counters alone; None: everybody's, of at most MOST_TENANTS
            tenants, those with most KV first.

    Cost: `max_nodes`, and the numbers of trees and tenants.
    """
    seen = cache.snapshot(max_nodes=max(min(max_nodes, MOST_NODES), 0), tenant=tenant)
    names = {adapter.load_id: adapter.name for adapter in info.adapters}
    tenants = [cache.tenant_stats(tenant)] if tenant is not None else _largest(cache.tenants())
    size = cache.block_size_tokens
    return Inspection(
        trees=[_tree(tree, names) for tree in seen.trees],
        is_complete=seen.is_complete and len(tenants) <= MOST_TENANTS,
        tenants=[_tenant(stats, tenant or stats.tenant, size) for stats in tenants[:MOST_TENANTS]],
        publications=publications,
        pool=cache.counts(group),
        longest_free_run=cache.longest_free_run(group),
        block_size_tokens=size,
        kv_bytes_per_token=info.kv_bytes_per_token,
    )


def _largest(tenants: list[TenantStats]) -> list[TenantStats]:
    if len(tenants) <= MOST_TENANTS:
        return tenants
    return sorted(tenants, key=lambda stats: -(stats.cached_blocks + stats.held_blocks))


def _tree(tree: TreeView, adapter_names: dict[str, str]) -> TreeShown:
    namespace = tree.namespace
    adapter = namespace.adapter
    return TreeShown(
        tenant=namespace.tenant,
        adapter=None if adapter is None else adapter_names.get(adapter, adapter),
        has_salt=namespace.salt is not None,
        is_current=tree.is_current,
        published=tree.published,
        nodes=[_node(node) for node in tree.nodes],
    )


def _node(node: NodeView) -> NodeShown:
    return NodeShown(
        id=node.id,
        parent=node.parent,
        start_token=node.start_token,
        n_tokens=node.n_tokens,
        pins=node.pins,
        is_retained=node.retained,
        hits=node.hits,
        idle_seconds=node.idle_seconds,
    )


def _tenant(stats: TenantStats, name: str, block_tokens: int) -> TenantShown:
    """Return a tenant's numbers; `name`: the index knows none of one that it never saw."""
    return TenantShown(
        tenant=name,
        cached_tokens=stats.cached_blocks * block_tokens,
        held_tokens=stats.held_blocks * block_tokens,
        retained_tokens=stats.retained_blocks * block_tokens,
        reserved_tokens=stats.reserved_blocks * block_tokens,
        max_tokens=stats.max_blocks * block_tokens,
        requests_total=stats.lookups.requests,
        prompt_tokens_total=stats.lookups.tokens,
        hit_tokens_total=stats.lookups.hit_tokens,
        evicted_tokens_total=stats.evicted_blocks * block_tokens,
        misses={reason.value: n for reason, n in stats.lookups.misses.items()},
    )
