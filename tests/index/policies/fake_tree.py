"""A small tree of entries that keeps the cache's promises to a policy, and no more."""

from __future__ import annotations

import itertools

from prefixcache.index.entry import Entry
from prefixcache.index.policies import EvictionPolicy

_TOKENS = itertools.count()  # a block is one token here, and each new edge has one of its own


class FakeNode(Entry):
    """An entry that knows its place. `pins` counts as in the real tree: pinned children too."""

    __slots__ = ("__weakref__", "children", "parent", "pins")

    def __init__(self, parent: FakeNode | None, n_blocks: int, now: float) -> None:
        above = 0 if parent is None else parent.end_block
        edge = next(_TOKENS).to_bytes(4, "little") * n_blocks
        super().__init__(n_blocks, above + n_blocks, now, edge=edge)
        self.parent = parent  # which does not know of it yet
        self.children: set[FakeNode] = set()
        self.pins = 0

    def path(self) -> list[FakeNode]:
        """Return this node and those above it, deepest first."""
        path = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return path


class FakeTree:
    """Nodes, and which of them the policy has listed. Every call is a moment of its own."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.policy = policy
        self.now = 0.0
        self.nodes: dict[FakeNode, None] = {}
        self.listed: set[FakeNode] = set()

    @property
    def listed_leaves(self) -> list[FakeNode]:
        """What may be given up now."""
        return [node for node in self.nodes if node in self.listed and not node.children]

    def pin(self, node: FakeNode) -> None:
        """Hold `node` and what is above it."""
        for above in node.path():
            above.pins += 1
            if above.pins > 1:
                return
            self.listed.discard(above)
            self.policy.discard(above)

    def unpin(self, node: FakeNode) -> None:
        """Let `node` go, and what is above it where nothing else holds it."""
        self.now += 1
        for above in node.path():
            above.pins -= 1
            if above.pins:
                return
            above.last_used = self.now
            self.listed.add(above)
            self.policy.add(above)

    def hit(self, node: FakeNode, priority: int = 0) -> None:
        """Pin `node` as a request that found it cached."""
        self.pin(node)
        for above in node.path():
            above.hits += 1
            above.priority = max(above.priority, priority)

    def grow(self, parent: FakeNode | None, n_blocks: int, priority: int = 0) -> FakeNode:
        """Put a new node below `parent`, which is pinned or None, and move the pin to it."""
        node = FakeNode(parent, n_blocks, self.now)
        node.pins, node.priority = 1, priority
        self.nodes[node] = None
        if parent is not None:
            parent.children.add(node)
            parent.n_resident += 1
        return node

    def split(self, node: FakeNode) -> FakeNode:
        """Cut the first block of a longer `node` off, as a node above it that is not listed yet."""
        upper = FakeNode(node.parent, 1, self.now)
        upper.created, upper.last_used = node.created, node.last_used
        upper.hits, upper.priority = node.hits, node.priority
        upper.pins = 1 if node.pins else 0
        upper.children, upper.n_resident = {node}, 1
        if node.parent is not None:
            node.parent.children.remove(node)
            node.parent.children.add(upper)
        node.parent = upper
        node.n_blocks -= 1
        upper.edge, node.edge = node.edge[:4], node.edge[4:]
        self.nodes[upper] = None
        return upper

    def remove(self, leaf: FakeNode) -> None:
        """Give up a listed leaf."""
        self.policy.discard(leaf)
        self.listed.remove(leaf)
        del self.nodes[leaf]
        parent = leaf.parent
        if parent is None:
            return
        parent.children.remove(leaf)
        parent.n_resident -= 1
        if not parent.n_resident and parent in self.listed:
            self.policy.expose(parent)

    def give_up(self) -> FakeNode | None:
        """Give up the policy's victim, and return it."""
        victim = self.policy.victim(self.now)
        if victim is not None:
            assert isinstance(victim, FakeNode)
            self.remove(victim)
        return victim

    def store(self, parent: FakeNode | None, n_blocks: int = 1, *, priority: int = 0) -> FakeNode:
        """Run a whole request: it finds `parent` and leaves a new node below it."""
        if parent is not None:
            self.hit(parent, priority)
        node = self.grow(parent, n_blocks, priority)
        self.unpin(node)
        return node

    def use(self, node: FakeNode) -> None:
        """Run a whole request that finds `node` and stores nothing."""
        self.hit(node)
        self.unpin(node)

    def drain(self) -> list[FakeNode]:
        """Give up everything, and return it in the order in which it went."""
        order = []
        while (victim := self.give_up()) is not None:
            order.append(victim)
        return order
