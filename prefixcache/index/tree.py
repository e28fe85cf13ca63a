"""The radix tree: nodes whose edges are whole blocks of packed token ids, and how to walk them.

This module knows structure alone; pools, policies and leases are elsewhere. Nothing here
recurses: a conversation may be thousands of nodes deep.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, NewType

from prefixcache.index.namespaces import Generations, Namespace
from prefixcache.index.ordered import BlockMap
from prefixcache.index.spans import GroupRuns, cut_groups, join, join_groups
from prefixcache.index.tokens import TOKEN_BYTES, common_prefix_tokens

NodeId = NewType("NodeId", int)


class Node:
    """An edge of the tree: tokens of one or more whole blocks, and the blocks with their KV.

    `pins` counts the leases that end at this node and the children that are pinned, so that a
    pinned node's ancestors are pinned as well, and a walk up can stop at the first that already
    was. The node's blocks are held while it is above 0.
    """

    __slots__ = ("children", "edge", "id", "last_used", "parent", "pins", "runs")

    def __init__(self, id: NodeId, edge: bytes, runs: GroupRuns) -> None:
        self.id = id
        self.edge = edge
        self.runs = runs
        self.parent: Node | None = None  # None: a root, or cut off from its tree
        self.children: BlockMap[Node] | None = None  # by first block; None: a leaf
        self.pins = 0
        self.last_used = 0  # the cache's clock when the last pin went


class Root(Node):
    """The node with no tokens above all others of one namespace and its generations."""

    __slots__ = ("generations", "memberships", "namespace")

    def __init__(
        self, id: NodeId, namespace: Namespace, generations: Generations, no_runs: GroupRuns
    ) -> None:
        super().__init__(id, b"", no_runs)
        self.namespace = namespace
        self.generations = generations
        self.memberships: tuple[dict[Root, None], ...] = ()  # the forest's


class Match(NamedTuple):
    """How far a prompt follows a tree: whole blocks, then some tokens of one block more.

    That last block is either the one after `edge_blocks` in `node` itself, or the first of a child.
    """

    node: Node  # the deepest one of which at least a block matched; the start when none did
    n_blocks: int  # whole blocks matched, counted from position 0
    edge_blocks: int  # how many of the blocks of `node` are among them
    source: Node | None = None  # where the last block lies; None: nothing is shared beyond
    shared_tokens: int = 0  # how many leading tokens of it are shared


def find(
    start: Node, tokens: bytes, start_block: int, end: int, *, block_bytes: int, token_exact: bool
) -> Match:
    """Return how far `tokens` follow the tree below `start`. Changes nothing.

    Args:
        start: a node whose path is the first `start_block` blocks of `tokens`.
        end: the match covers no token from this position on.
        token_exact: look also for the block that shares most of the tokens after the last whole
            block that matches.

    Cost: one comparison of memory over what matches; per node one hash of a block.
    """
    node, at, end_bytes = start, start_block * block_bytes, end * TOKEN_BYTES
    while node.children is not None:
        until = at + block_bytes
        child = node.children.get(tokens[at:until]) if until <= end_bytes else None
        if child is None:
            break
        is_whole = tokens.startswith(child.edge, at)
        if not is_whole or at + len(child.edge) > end_bytes:
            n_left = (end_bytes - at) // TOKEN_BYTES
            if not is_whole:
                n_left = min(n_left, common_prefix_tokens(child.edge, 0, tokens, at // TOKEN_BYTES))
            return _midway(child, at // block_bytes, n_left, block_bytes, token_exact)
        node, at = child, at + len(child.edge)
    match = Match(node, at // block_bytes, len(node.edge) // block_bytes)
    if token_exact and node.children is not None and at < end_bytes:
        return _nearest_child(match, node.children, tokens[at : min(at + block_bytes, end_bytes)])
    return match


def _midway(
    child: Node, n_blocks_above: int, n_alike: int, block_bytes: int, token_exact: bool
) -> Match:
    """Return the match that ends after `n_alike` tokens of the edge of `child`."""
    edge_blocks, n_shared = divmod(n_alike, block_bytes // TOKEN_BYTES)
    n_blocks = n_blocks_above + edge_blocks
    if token_exact and n_shared:
        return Match(child, n_blocks, edge_blocks, child, n_shared)
    return Match(child, n_blocks, edge_blocks)


def _nearest_child(match: Match, children: BlockMap[Node], wanted: bytes) -> Match:
    for block, child in children.neighbours(wanted):
        shared = common_prefix_tokens(block, 0, wanted, 0)
        if shared > match.shared_tokens:
            match = match._replace(source=child, shared_tokens=shared)
    return match


def first_block(node: Node, block_bytes: int) -> bytes:
    """Return the key of `node` among its siblings."""
    return node.edge[:block_bytes]


def attach(parent: Node, child: Node, block_bytes: int) -> None:
    """Put `child` below `parent`, in the place of a child with the same first block."""
    if parent.children is None:
        parent.children = BlockMap()
    parent.children[first_block(child, block_bytes)] = child
    child.parent = parent


def detach(node: Node, block_bytes: int) -> Node:
    """Cut a leaf off its tree and return what was its parent."""
    parent = node.parent
    assert parent is not None and parent.children is not None  # noqa: PT018
    del parent.children[first_block(node, block_bytes)]
    if not parent.children:
        parent.children = None
    node.parent = None
    return parent


def split(node: Node, n_blocks: int, upper_id: NodeId, block_bytes: int) -> Node:
    """Move the first `n_blocks` blocks of `node` to a new node above it, and return that.

    The lower half stays the same object: leases that end here keep ending here.
    """
    head, tail = cut_groups(node.runs, n_blocks)
    at = n_blocks * block_bytes
    upper = Node(upper_id, node.edge[:at], head)
    upper.pins = 1 if node.pins else 0
    upper.last_used = node.last_used
    assert node.parent is not None
    attach(node.parent, upper, block_bytes)
    node.edge, node.runs = node.edge[at:], tail
    attach(upper, node, block_bytes)
    return upper


def lengthen(leaf: Node, edge: bytes, runs: GroupRuns) -> None:
    """Add whole blocks at the end of a leaf. Cost: a copy of its edge."""
    leaf.edge += edge
    leaf.runs = join_groups(leaf.runs, runs)


def trim(leaf: Node, n_blocks: int, block_bytes: int) -> GroupRuns:
    """Take the last `n_blocks` blocks off a leaf that keeps at least one, and return them."""
    kept = len(leaf.edge) // block_bytes - n_blocks
    leaf.runs, taken = cut_groups(leaf.runs, kept)
    leaf.edge = leaf.edge[: kept * block_bytes]
    return taken


def path_runs(node: Node, above: Node) -> GroupRuns:
    """Return the blocks on the path from below `above` down to `node`, in prompt order."""
    path: list[Node] = []
    while node is not above:
        path.append(node)
        assert node.parent is not None
        node = node.parent
    path.reverse()
    return tuple(join(*(n.runs[group] for n in path)) for group in range(len(above.runs)))


def unpinned_leaves(root: Root) -> Iterator[Node]:
    """Yield each unpinned leaf below `root`, children before parents, until the caller removes it.

    A node is yielded again and again while it is attached; it is a leaf because the caller
    removed what was below. The tree may lose other nodes meanwhile but may gain none.
    Cost: O(1) per step and node, with no look ahead.
    """
    stack: list[tuple[Node, Iterator[Node]]] = [(root, iter(_children(root)))]
    while stack:
        node, rest = stack[-1]
        child = next(rest, None)
        if child is not None:
            stack.append((child, iter(_children(child))))
            continue
        stack.pop()
        while node.parent is not None and node.children is None and not node.pins:
            yield node


def nodes(root: Root) -> Iterator[Node]:
    """Yield `root` and every node below it, parents before children."""
    stack: list[Node] = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(_children(node))


def _children(node: Node) -> tuple[Node, ...]:
    return () if node.children is None else tuple(node.children.values())
