"""One tree per namespace, which of them are out of date, and what is left of those."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from prefixcache.index.namespaces import GenerationCounters, Namespace, Scope, scopes_of
from prefixcache.index.spans import GroupRuns
from prefixcache.index.tree import Node, NodeId, Root, unpinned_leaves


class Forest:
    """The roots of all trees.

    A root carries the generations it was made under. After a bump its namespace's next request
    plants a new root; the old tree can no longer be found, waits in a queue and is taken down
    leaf by leaf when room is needed.

    `invalidate` is O(1): the roots of each scope are kept together, and a bump moves that
    whole collection to the queue without opening it.
    """

    def __init__(self, no_runs: GroupRuns) -> None:
        self._generations = GenerationCounters()
        self._roots: dict[Namespace, Root] = {}
        self._by_scope: dict[Scope, dict[Root, None]] = {}
        self._all: dict[Root, None] = {}
        self._stale: deque[dict[Root, None]] = deque()
        self._walk: Iterator[Node] = iter(())  # the stale tree that is being taken down
        self._no_runs = no_runs

    def __iter__(self) -> Iterator[Root]:
        """Yield every root, stale ones too."""
        return iter(self._all)

    def is_current(self, root: Root) -> bool:
        """Return whether nothing that `root` depends on was invalidated since. O(1)."""
        return root.generations == self._generations.current(root.namespace)

    def root_of(self, namespace: Namespace) -> Root | None:
        """Return the root that may be matched now, or None. O(1), changes nothing."""
        root = self._roots.get(namespace)
        return root if root is not None and self.is_current(root) else None

    def plant(self, namespace: Namespace, new_id: NodeId) -> Root:
        """Return the root that may be matched now; make one named `new_id` if there is none."""
        known = self.root_of(namespace)
        if known is not None:
            return known
        root = Root(new_id, namespace, self._generations.current(namespace), self._no_runs)
        root.memberships = tuple(
            self._by_scope.setdefault(scope, {}) for scope in scopes_of(namespace)
        )
        for members in (*root.memberships, self._all):
            members[root] = None
        self._roots[namespace] = root
        return root

    def drop(self, root: Root) -> None:
        """Forget an empty tree that no lease is in, stale or not."""
        for members in (*root.memberships, self._all):
            members.pop(root, None)
        for scope in scopes_of(root.namespace):
            if not self._by_scope.get(scope, True):
                del self._by_scope[scope]
        if self._roots.get(root.namespace) is root:
            del self._roots[root.namespace]

    def invalidate(self, scope: Scope) -> None:
        """Make every tree of `scope` unmatchable. O(1), amortised; nothing is freed yet."""
        self._generations.bump(scope)
        members = self._by_scope.pop(scope, None)
        if members:
            self._stale.append(members)
        while self._stale and not self._stale[0]:
            self._stale.popleft()

    def stale_leaf(self) -> Node | None:
        """Return an unpinned leaf of a stale tree, the same one until it is removed, or None.

        What a running request pins is passed over: the release has to remove it. O(1), amortised
        over the nodes of stale trees.
        """
        while True:
            leaf = next(self._walk, None)
            if leaf is not None or not self._stale:
                return leaf
            self._walk = self._next_walk()

    def _next_walk(self) -> Iterator[Node]:
        members = self._stale[0]
        if not members:
            self._stale.popleft()
            return iter(())
        root, _ = members.popitem()
        return unpinned_leaves(root)
