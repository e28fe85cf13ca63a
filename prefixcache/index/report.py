"""What an operator sees: counters, gauges and the trees as data."""

from __future__ import annotations

from collections import deque

import msgspec

from prefixcache.index.accounts import Account, Accounts
from prefixcache.index.forest import Forest
from prefixcache.index.keeper import Keeper
from prefixcache.index.misses import MissReason, Tally
from prefixcache.index.namespaces import Namespace
from prefixcache.index.nodes import Anchor, Mount, Node, Root
from prefixcache.index.tokens import TOKEN_BYTES
from prefixcache.index.tree import children_of


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the cache was made; none ever falls."""

    lookups: int  # `acquire` calls that read
    lookup_tokens: int  # prompt tokens of those
    hit_tokens: int  # how many of them were cached
    misses: dict[MissReason, int]  # requests that did not find all, by what stood in the way
    evicted_blocks: int  # by a policy's choice; of each layer group
    reclaimed_blocks: int  # of invalidated trees; of each layer group
    double_releases: int


class TenantStats(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's blocks now, and its counters."""

    tenant: str
    cached_blocks: int
    held_blocks: int
    retained_blocks: int  # of both
    reserved_blocks: int
    max_blocks: int
    lookups: int
    lookup_tokens: int
    hit_tokens: int
    misses: dict[MissReason, int]
    evicted_blocks: int


class NamespaceStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a namespace since its present tree was planted."""

    namespace: Namespace
    lookups: int
    lookup_tokens: int
    hit_tokens: int
    misses: dict[MissReason, int]


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a snapshot."""

    id: int  # its place in the snapshot
    parent: int | None
    start_token: int
    n_tokens: int
    n_blocks: int
    on_device: bool
    pins: int
    retained: bool
    hits: int
    idle_seconds: float | None  # None: in use
    n_children: int  # of which the snapshot may lack some


class TreeView(msgspec.Struct, frozen=True, kw_only=True):
    """One tree of a snapshot; its nodes, parents before children."""

    namespace: Namespace
    is_current: bool  # False: invalidated, waiting to be taken down
    published: str | None  # what it hangs from: "name version"
    nodes: list[NodeView]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The trees as data. Token ids are left out: they are what tenants wrote."""

    trees: list[TreeView]
    is_complete: bool  # False: `max_nodes` was reached


def cache_stats_of(
    accounts: Accounts, forest: Forest, keeper: Keeper, double_releases: int
) -> CacheStats:
    """Add up all accounts and trees."""
    total = Tally()
    for account in accounts:
        total.merge(account.tally)
    for root in forest:
        if isinstance(root, Root):
            total.merge(root.tally)
    return CacheStats(
        lookups=total.lookups,
        lookup_tokens=total.lookup_tokens,
        hit_tokens=total.hit_tokens,
        misses=total.misses,
        evicted_blocks=keeper.evicted_blocks,
        reclaimed_blocks=keeper.reclaimed_blocks,
        double_releases=double_releases,
    )


def tenant_stats_of(account: Account, forest: Forest) -> TenantStats:
    """Return an account's numbers."""
    tally = Tally()
    tally.merge(account.tally)
    for root in forest:
        if isinstance(root, Root) and root.account is account:
            tally.merge(root.tally)
    return TenantStats(
        tenant=account.tenant,
        cached_blocks=account.n_cached,
        held_blocks=account.n_held,
        retained_blocks=account.n_kept,
        reserved_blocks=account.reserved_blocks,
        max_blocks=account.max_blocks,
        lookups=tally.lookups,
        lookup_tokens=tally.lookup_tokens,
        hit_tokens=tally.hit_tokens,
        misses=dict(tally.misses),
        evicted_blocks=account.evicted_blocks,
    )


def namespace_stats_of(forest: Forest) -> list[NamespaceStats]:
    """Return the numbers of every current tree."""
    return [
        NamespaceStats(
            namespace=root.namespace,
            lookups=root.tally.lookups,
            lookup_tokens=root.tally.lookup_tokens,
            hit_tokens=root.tally.hit_tokens,
            misses=dict(root.tally.misses),
        )
        for root in forest
        if isinstance(root, Root) and forest.is_current(root)
    ]


def snapshot_of(
    forest: Forest, *, max_nodes: int, tenant: str | None, now: float, block_tokens: int
) -> Snapshot:
    """Walk every tree breadth first, until `max_nodes` nodes have been seen; a root is one too."""
    trees: list[TreeView] = []
    left = max_nodes
    for anchor in forest:
        root = anchor.parent if isinstance(anchor, Mount) else anchor
        if not isinstance(root, Root) or tenant not in (None, root.namespace.tenant):
            continue
        if left < 1:
            return Snapshot(trees=trees, is_complete=False)
        views, n_unseen = _views(anchor, left - 1, now, block_tokens)
        left -= 1 + len(views)
        published = anchor.published if isinstance(anchor, Mount) else None
        trees.append(
            TreeView(
                namespace=root.namespace,
                is_current=forest.is_storable(anchor),
                published=None if published is None else f"{published.name} {published.version}",
                nodes=views,
            )
        )
        if n_unseen:
            return Snapshot(trees=trees, is_complete=False)
    return Snapshot(trees=trees, is_complete=True)


def _views(anchor: Anchor, most: int, now: float, block_tokens: int) -> tuple[list[NodeView], int]:
    """Return the first nodes below an anchor, and how many known ones were left out."""
    views: list[NodeView] = []
    queue: deque[tuple[Node, int | None]] = deque((child, None) for child in children_of(anchor))
    while queue and len(views) < most:
        node, parent = queue.popleft()
        own_id = len(views)
        children = children_of(node)
        queue.extend((child, own_id) for child in children)
        views.append(
            NodeView(
                id=own_id,
                parent=parent,
                start_token=(node.end_block - node.n_blocks) * block_tokens,
                n_tokens=len(node.edge) // TOKEN_BYTES,
                n_blocks=node.n_blocks,
                on_device=bool(node.runs[0]),
                pins=node.pins,
                retained=node.keeps > 0,
                hits=node.hits,
                idle_seconds=None if node.pins else max(now - node.last_used, 0.0),
                n_children=len(children),
            )
        )
    return views, len(queue)
