"""Pins nodes, lists the leaves that may be given up, and gives them up."""

from __future__ import annotations

from itertools import count

from prefixcache.index.forest import Forest
from prefixcache.index.groups import GroupPools
from prefixcache.index.policies import EvictionPolicy
from prefixcache.index.spans import GroupRuns
from prefixcache.index.tokens import TOKEN_BYTES
from prefixcache.index.tree import Node, NodeId, Root, attach, detach, split, trim


class Keeper:
    """Keeps a node's pins, its blocks' state in the pools and the policy's list in step.

    A node other than a root is listed exactly while it is an unpinned leaf. Every unpinned node
    can be given up in the end, for what is below it is unpinned too: so all cached blocks
    can be had.
    """

    def __init__(
        self, pools: GroupPools, forest: Forest, policy: EvictionPolicy, block_bytes: int
    ) -> None:
        self._pools = pools
        self._forest = forest
        self._policy = policy
        self._block_bytes = block_bytes
        self._listed: dict[NodeId, Node] = {}
        self._ids = count()
        self.evicted_blocks = 0  # given up by the policy's choice
        self.reclaimed_blocks = 0  # given up because they were invalidated

    def new_id(self) -> NodeId:
        """Return an id that no node had before."""
        return NodeId(next(self._ids))

    def n_blocks_of(self, node: Node) -> int:
        """Return the length of a node's edge in blocks."""
        return len(node.edge) // self._block_bytes

    def is_listed(self, node: Node) -> bool:
        """Return whether `node` may be given up next."""
        return self._listed.get(node.id) is node

    @property
    def n_listed(self) -> int:
        """Nodes that may be given up next."""
        return len(self._listed)

    def pin(self, node: Node) -> None:
        """Add a pin to `node`. Cost: the ancestors that were unpinned, the first pinned one."""
        above: Node | None = node
        while above is not None:
            above.pins += 1
            if above.pins > 1:
                return
            self._pools.pin(self.n_blocks_of(above))
            self._unlist(above)
            above = above.parent

    def unpin(self, node: Node, now: int) -> None:
        """Take a pin off `node`; what nobody pins any more was last used `now`. Cost: as `pin`."""
        above: Node | None = node
        while above is not None:
            above.pins -= 1
            if above.pins:
                return
            above.last_used = now
            self._pools.unpin(self.n_blocks_of(above))
            self._list(above)
            above = above.parent

    def unpinned_blocks(self, node: Node, edge_blocks: int) -> int:
        """Return how many blocks would turn held if `node`, cut to `edge_blocks`, were pinned."""
        total = 0
        above: Node | None = node
        while above is not None and not above.pins:
            total += edge_blocks if above is node else self.n_blocks_of(above)
            above = above.parent
        return total

    def split(self, node: Node, n_blocks: int) -> Node:
        """Return the node that ends after the first `n_blocks` blocks of `node`.

        That is `node` itself, or a new one above it which takes those blocks.
        """
        if n_blocks == self.n_blocks_of(node):
            return node
        upper = split(node, n_blocks, self.new_id(), self._block_bytes)
        self._list(node)
        return upper

    def grow(self, parent: Node, edge: bytes, runs: GroupRuns) -> Node:
        """Put a new child with held blocks below `parent`, and return it.

        The lease that ended at `parent` ends at the child from now on: the child gets its pin,
        and the parent keeps one for the child.
        """
        child = Node(self.new_id(), edge, runs)
        child.pins = 1
        attach(parent, child, self._block_bytes)
        return child

    def evict(self, n_blocks: int) -> int:
        """Give up at most `n_blocks` positions: stale trees first, then as the policy says.

        Tail blocks go before what they depend on. Returns how many were freed.
        Cost: O(log n) per node given up; independent of how many are kept.
        """
        freed = self.reclaim(n_blocks)
        while freed < n_blocks:
            victim = self._policy.victim()
            if victim is None:
                break
            n_given = self._give_up(self._listed[victim], n_blocks - freed)
            self.evicted_blocks += n_given
            freed += n_given
        return freed

    def reclaim(self, n_blocks: int | None) -> int:
        """Give up at most `n_blocks` positions (None: all) of stale trees that nobody pins."""
        freed = 0
        while n_blocks is None or freed < n_blocks:
            leaf = self._forest.stale_leaf()
            if leaf is None:
                break
            left = self.n_blocks_of(leaf) if n_blocks is None else n_blocks - freed
            freed += self._give_up(leaf, left)
        self.reclaimed_blocks += freed
        return freed

    def reclaim_path(self, node: Node) -> None:
        """Give up a stale tree's `node` and its ancestors, as far as they are unpinned leaves.

        Cost: what it frees.
        """
        while node.parent is not None and self.is_listed(node):
            parent = node.parent
            self.reclaimed_blocks += self._give_up(node, self.n_blocks_of(node))
            node = parent

    def drop_if_empty(self, root: Root) -> None:
        """Forget `root` when it has no tokens and no leases left."""
        if root.children is None and not root.pins:
            self._forest.drop(root)

    def _give_up(self, leaf: Node, at_most: int) -> int:
        n_blocks = self.n_blocks_of(leaf)
        if at_most < n_blocks:
            self._pools.free_cached(trim(leaf, at_most, self._block_bytes))
            self._list(leaf)
            return at_most
        self._unlist(leaf)
        self._pools.free_cached(leaf.runs)
        parent = detach(leaf, self._block_bytes)
        if isinstance(parent, Root):
            self.drop_if_empty(parent)
        else:
            self._list(parent)
        return n_blocks

    def _list(self, node: Node) -> None:
        """List `node`, or its new length, if it is an unpinned leaf."""
        if node.pins or node.children is not None or isinstance(node, Root):
            return
        self._listed[node.id] = node
        n_tokens = len(node.edge) // TOKEN_BYTES
        self._policy.add(node.id, n_tokens=n_tokens, last_used=node.last_used)

    def _unlist(self, node: Node) -> None:
        if self._listed.pop(node.id, None) is not None:
            self._policy.discard(node.id)
