"""The trees as data, for an operator's eyes."""

from __future__ import annotations

from collections import deque

import msgspec

from prefixcache.index.forest import Forest
from prefixcache.index.namespaces import Namespace
from prefixcache.index.nodes import Anchor, Mount, Node, Root
from prefixcache.index.tokens import TOKEN_BYTES
from prefixcache.index.tree import children_of


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
