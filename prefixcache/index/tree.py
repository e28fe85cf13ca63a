"""How nodes hang together, and how to walk them.

This module knows structure alone; pools, policies and leases are elsewhere. Nothing here
recurses: a conversation may be thousands of nodes deep.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from prefixcache.index.children import Bucket, Children
from prefixcache.index.nodes import Anchor, Mount, Node
from prefixcache.index.spans import GroupRuns, cut_groups, join_groups
from prefixcache.index.tokens import TOKEN_BYTES, Packed, common_prefix_tokens


class Match(msgspec.Struct, eq=False):
    """How far a prompt follows a tree: whole blocks, then some tokens of one block more.

    That last block is either the one after `edge_blocks` in `node` itself, or the first of a child.
    """

    node: Node  # the deepest of which at least a block matched; the start if none did
    n_blocks: int  # whole blocks matched, counted from position 0
    edge_blocks: int  # how many of the blocks of `node` are among them
    source: Node | None = None  # where the last block lies; None: nothing is shared beyond
    shared_tokens: int = 0  # how many leading tokens of it are shared
    is_cut: bool = False  # whether it went on, to where a window has a hole

    def copying(self, source: Node | None, shared_tokens: int) -> Match:
        """Return the same match with another last block, or none."""
        return Match(self.node, self.n_blocks, self.edge_blocks, source, shared_tokens)


def find(
    start: Node,
    tokens: Packed,
    start_block: int,
    end: int,
    block_bytes: int,
    token_exact: bool = True,
) -> Match:
    """Return how far `tokens` follow what is on the device below `start`. Changes nothing.

    Args:
        start: a node whose path is the first `start_block` blocks of `tokens`.
        end: the match covers no token from this position on.
        token_exact: look also for the block that shares most of the tokens after the last whole
            block that matches.

    Cost: one comparison of memory over what matches; per node one hash of a token, and one of a
    block where other children begin with the same token.
    """
    node, at, end_bytes = start, start_block * block_bytes, end * TOKEN_BYTES
    if isinstance(tokens, bytes):
        has_at = tokens.startswith
    else:
        tokens = tokens.toreadonly()  # which has a hash, that of the same bytes
        has_at = partial(_has_at, tokens)
    while node.children is not None and at < end_bytes:
        entry = node.children.by_token.get(tokens[at : at + TOKEN_BYTES])
        if entry is None:
            break
        if isinstance(entry, Bucket):
            entry = _of_bucket(entry, bytes(tokens[at : min(at + block_bytes, end_bytes)]))
        edge = entry.edge
        until = at + len(edge)
        if until <= end_bytes and has_at(edge, at) and until - at >= block_bytes and entry.runs[0]:
            node, at = entry, until
        else:
            rest = memoryview(tokens)[at:end_bytes]
            n_alike = common_prefix_tokens(edge, 0, rest, 0)
            return _midway(node, entry, at // block_bytes, n_alike, block_bytes, token_exact)
    return Match(node, at // block_bytes, node.n_blocks)


def _has_at(tokens: memoryview, edge: bytes, at: int) -> bool:
    """Return whether `edge` is in a view at a place where the view is long enough."""
    return edge.startswith(tokens[at : at + len(edge)])


def _of_bucket(bucket: Bucket[Node], wanted: bytes) -> Node:
    """Return the child that shares most of a block; all of them share its first token."""
    exact = bucket.get(wanted)
    if exact is not None:
        return exact
    keys = bucket.neighbours(wanted)
    return bucket[max(keys, key=lambda key: common_prefix_tokens(key, 0, wanted, 0))]


def _midway(
    node: Node, child: Node, at_block: int, n_alike: int, block_bytes: int, token_exact: bool
) -> Match:
    """Return the match that ends after `n_alike` tokens of the edge of `child`, below `node`."""
    if not child.runs[0]:
        return Match(node, at_block, node.n_blocks)
    edge_blocks, n_shared = divmod(n_alike, block_bytes // TOKEN_BYTES)
    match = Match(node, at_block, node.n_blocks)
    if edge_blocks:
        match = Match(child, at_block + edge_blocks, edge_blocks)
    if token_exact and n_shared:
        match.source, match.shared_tokens = child, n_shared
    return match


def attach(parent: Node, child: Node, block_bytes: int) -> None:
    """Put a new child below `parent`."""
    if parent.children is None:
        parent.children = Children(block_bytes)
    parent.children.put(child)
    if child.runs[0]:
        parent.n_resident += 1
    child.parent = parent


def hand_pin_down(child: Node) -> None:
    """Have the lease that ended at the parent of `child` pin that, and so its parent, instead."""
    child.pins = 1
    parent = child.parent
    assert parent is not None
    if parent.parent is None:
        parent.pins -= 1  # a root counts no children


def detach(node: Node) -> Node:
    """Cut off a node that nothing is below, and return what was its parent."""
    parent = node.parent
    assert parent is not None and parent.children is not None  # noqa: PT018
    parent.children.remove(node)
    if not parent.children.n:
        parent.children = None
    if node.runs[0]:
        parent.n_resident -= 1
    node.parent = None
    return parent


def split(node: Node, n_blocks: int, block_bytes: int) -> Node:
    """Move the first `n_blocks` blocks of `node` to a new node above it, and return that.

    The lower half stays the same object: leases that end here keep ending here.
    """
    head, tail = cut_groups(node.runs, n_blocks)
    at = n_blocks * block_bytes
    n_below = node.n_blocks - n_blocks
    end_block = node.end_block - n_below
    upper = Node(node.account, node.edge[:at], head, n_blocks, end_block, node.created)
    upper.last_used, upper.hits, upper.priority = node.last_used, node.hits, node.priority
    upper.pins, upper.keeps = min(node.pins, 1), min(node.keeps, 1)
    parent = node.parent
    assert parent is not None and parent.children is not None  # noqa: PT018
    parent.children.put(upper)
    upper.parent = parent
    node.edge, node.runs, node.n_blocks = node.edge[at:], tail, n_below
    attach(upper, node, block_bytes)
    return upper


def cut_tail(node: Node, n_blocks: int, block_bytes: int) -> Node:
    """Move all but the first `n_blocks` blocks of `node` to a new node below it, and return that.

    What was below `node` is below the new one then. Cost: those children.
    """
    at = n_blocks * block_bytes
    head, tail = cut_groups(node.runs, n_blocks)
    n_below = node.n_blocks - n_blocks
    lower = Node(node.account, node.edge[at:], tail, n_below, node.end_block, node.created)
    lower.last_used, lower.hits, lower.priority = node.last_used, node.hits, node.priority
    lower.children, lower.n_resident = node.children, node.n_resident
    lower.digest, node.digest = node.digest, None
    for child in children_of(node):
        child.parent = lower
    node.children, node.n_resident = None, 0
    node.edge, node.runs, node.n_blocks = node.edge[:at], head, n_blocks
    node.end_block -= n_below
    attach(node, lower, block_bytes)
    return lower


def merge(node: Node) -> None:
    """Make `node` and its parent, which has no other child, one node: `node`."""
    upper = node.parent
    assert upper is not None and upper.parent is not None  # noqa: PT018
    above = upper.parent
    assert above.children is not None
    node.edge = upper.edge + node.edge
    above.children.put(node)
    node.parent = above
    node.runs = join_groups(upper.runs, node.runs)
    node.n_blocks += upper.n_blocks
    node.created, node.hits = upper.created, upper.hits
    node.priority = upper.priority
    upper.parent = upper.children = None


def trim(leaf: Node, n_blocks: int, block_bytes: int) -> GroupRuns:
    """Take the last `n_blocks` blocks off a leaf that keeps at least one, and return them."""
    leaf.n_blocks -= n_blocks
    leaf.end_block -= n_blocks
    leaf.digest = None
    leaf.runs, taken = cut_groups(leaf.runs, leaf.n_blocks)
    leaf.edge = leaf.edge[: leaf.n_blocks * block_bytes]
    return taken


def runs_to(node: Node) -> GroupRuns:
    """Return the blocks from position 0 down to `node`, those of a published prompt included.

    Cost: the nodes of the path and their spans.
    """
    path: list[GroupRuns] = []
    above: Node | None = node
    while above is not None:
        path.append(above.runs)
        above = above.source if isinstance(above, Mount) else above.parent
    if len(path) == 1:
        return path[0]
    path.reverse()
    return join_groups(*path)


def unpinned_leaves(anchor: Anchor) -> Iterator[Node]:
    """Yield each unpinned leaf below `anchor`, children first, until the caller removes it.

    A node is yielded again and again while it is attached; it is a leaf because the caller
    removed what was below. The tree may lose other nodes meanwhile but may gain none.
    Cost: O(1) per step and node, with no look ahead.
    """
    stack: list[tuple[Node, Iterator[Node]]] = [(anchor, iter(children_of(anchor)))]
    while stack:
        node, rest = stack[-1]
        child = next(rest, None)
        if child is not None:
            stack.append((child, iter(children_of(child))))
            continue
        stack.pop()
        while node is not anchor and node.parent is not None:
            if node.children is not None or node.pins:
                break
            yield node


def anchor_of(node: Node) -> Anchor:
    """Return the root or mount that a node in a tree is below. Cost: the nodes of its path."""
    above = node
    while not isinstance(above, Anchor):
        assert above.parent is not None
        above = above.parent
    return above


def nodes(anchor: Anchor) -> Iterator[Node]:
    """Yield `anchor` and every node below it, parents before children."""
    stack: list[Node] = [anchor]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(children_of(node))


def child_of(node: Node, block: bytes) -> Node | None:
    """Return the child whose first block, or whole shorter edge, is `block`. O(1)."""
    return None if node.children is None else node.children.get(block)


def children_of(node: Node) -> tuple[Node, ...]:
    """Return a node's children."""
    return () if node.children is None else tuple(node.children)
