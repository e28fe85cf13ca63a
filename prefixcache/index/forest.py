"""One tree per namespace, which of them are out of date, and what is left of those."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from prefixcache.index.accounts import Account, Accounts
from prefixcache.index.hooks import Hooks
from prefixcache.index.namespaces import GenerationCounters, Namespace, Scope, scopes_of
from prefixcache.index.nodes import Anchor, Mount, Node, Root
from prefixcache.index.published import Published
from prefixcache.index.spans import GroupRuns
from prefixcache.index.tree import unpinned_leaves


class Forest:
    """The roots of all trees, and the mounts of published prompts below them.

    A root carries the generations it was made under. After a bump its namespace's next request
    plants a new root; the old tree can no longer be found, waits in a queue and is taken down
    leaf by leaf when room is needed. A mount whose prompt was retired ends the same way.

    `invalidate` is O(1): the roots of each scope are kept together, and a bump moves that
    whole collection to the queue without opening it.
    """

    def __init__(self, accounts: Accounts, hooks: Hooks, no_runs: GroupRuns) -> None:
        self._accounts = accounts
        self._hooks = hooks
        self._generations = GenerationCounters()
        self.epoch = 0  # counts bumps: a root that was checked at it is current
        self._roots: dict[Namespace, Root] = {}
        self._by_scope: dict[Scope | Published, dict[Anchor, None]] = {}
        self._all: dict[Anchor, None] = {}
        self._stale: deque[dict[Anchor, None]] = deque()
        self._walk: Iterator[Node] = iter(())  # the stale tree that is being taken down
        self.has_stale = False  # whether `stale_leaf` may find one
        self._no_runs = no_runs

    def __iter__(self) -> Iterator[Anchor]:
        """Yield every root and mount, stale ones too."""
        return iter(list(self._all))  # a copy: also for other threads

    def is_current(self, root: Root) -> bool:
        """Return whether nothing that `root` depends on was invalidated since. O(1)."""
        if root.checked_epoch == self.epoch:
            return True
        if root.generations != self._generations.current(root.namespace):
            return False
        root.checked_epoch = self.epoch
        return True

    def is_storable(self, anchor: Anchor) -> bool:
        """Return whether what is stored below `anchor` could be matched. O(1)."""
        if isinstance(anchor, Root):
            return anchor.checked_epoch == self.epoch or self.is_current(anchor)
        assert isinstance(anchor, Mount)
        root = anchor.parent
        return (
            anchor.published.is_live
            and isinstance(root, Root)
            and self.is_current(root)
            and self.is_current(anchor.system_root)
        )

    def has_only(self, root: Root) -> bool:
        """Return whether there is no tree but that of `root`, not even a stale one. O(1)."""
        return len(self._all) == 1 and root in self._all

    def roots_of(self, tenant: str) -> Iterator[Root]:
        """Yield the tenant's roots that may be matched."""
        for anchor in self._by_scope.get(Scope.tenant(tenant), ()):
            if isinstance(anchor, Root) and self.is_current(anchor):
                yield anchor

    def root_of(self, namespace: Namespace) -> Root | None:
        """Return the root that may be matched now, or None. O(1), changes nothing."""
        root = self._roots.get(namespace)
        if root is None or (root.checked_epoch != self.epoch and not self.is_current(root)):
            return None
        return root

    def root_to_look_in(self, namespace: Namespace) -> Root:
        """Return the root that may be matched now, or an empty one that is no tree's. O(1)."""
        known = self.root_of(namespace)
        return known if known is not None else self._new_root(namespace, 0.0)

    def plant(self, namespace: Namespace, now: float) -> Root:
        """Return the root that may be matched now; make one if there is none."""
        known = self._roots.get(namespace)
        if known is not None and (known.checked_epoch == self.epoch or self.is_current(known)):
            return known
        account = self._accounts.of(namespace.tenant)
        root = self._new_root(namespace, now, account)
        self._enter(root, _scopes_of(root))
        if root.previous is not None:
            root.previous.previous = None
        self._roots[namespace] = root
        return root

    def mount(self, root: Root, published: Published, n_blocks: int, now: float) -> Mount:
        """Return where `root` passes through the first blocks of a prompt; make it if need be."""
        system_root = self._roots[published.namespace]
        mounts = root.mounts.setdefault((published, system_root), {})
        known = mounts.get(n_blocks)
        if known is None:
            known = mounts[n_blocks] = Mount(root, published, system_root, n_blocks, now)
            self._enter(known, _scopes_of(known))
            system_root.n_mounted += 1
        return known

    def drop(self, anchor: Anchor) -> None:
        """Forget an empty root or mount that no lease is in, unless that was done before."""
        if anchor not in self._all:
            return
        for members in (*anchor.memberships, self._all):
            members.pop(anchor, None)
        for scope in _scopes_of(anchor):
            if not self._by_scope.get(scope, True):
                del self._by_scope[scope]
        if isinstance(anchor, Mount):
            self._drop_mount(anchor)
        elif isinstance(anchor, Root):
            anchor.account.tally.merge(anchor.tally)
            if self._roots.get(anchor.namespace) is anchor:
                del self._roots[anchor.namespace]

    def invalidate(self, scope: Scope) -> None:
        """Make every tree of `scope` unmatchable. O(1), amortised; nothing is freed yet."""
        if self._hooks.is_running:
            self._hooks.refuse()
        self._generations.bump(scope)
        self.epoch += 1
        self._bury(scope)

    def unmount(self, published: Published) -> None:
        """Put the mounts of a retired prompt, and all below them, up for reclaiming. O(1)."""
        self._bury(published)

    def stale_leaf(self) -> Node | None:
        """Return an unpinned leaf of a stale tree, the same one until it is removed, or None.

        What a running request pins is passed over: the release has to remove it. O(1), amortised
        over the nodes of stale trees.
        """
        while True:
            leaf = next(self._walk, None)
            if leaf is not None or not self._stale:
                self.has_stale = leaf is not None
                return leaf
            self._walk = self._next_walk()

    def _new_root(self, namespace: Namespace, now: float, account: Account | None = None) -> Root:
        root = Root(
            account or self._accounts.find(namespace.tenant),
            self._no_runs,
            namespace,
            self._generations.current(namespace),
            self.epoch,
            now,
        )
        root.previous = self._roots.get(namespace)
        return root

    def _enter(self, anchor: Anchor, scopes: tuple[Scope | Published, ...]) -> None:
        anchor.memberships = tuple(self._by_scope.setdefault(scope, {}) for scope in scopes)
        for members in (*anchor.memberships, self._all):
            members[anchor] = None

    def _drop_mount(self, mount: Mount) -> None:
        root = mount.parent
        assert isinstance(root, Root)
        key = mount.published, mount.system_root
        del root.mounts[key][mount.end_block]
        if not root.mounts[key]:
            del root.mounts[key]
        mount.parent = None
        mount.system_root.n_mounted -= 1

    def _bury(self, scope: Scope | Published) -> None:
        members = self._by_scope.pop(scope, None)
        if members:
            self._stale.append(members)
            self.has_stale = True
        while self._stale and not self._stale[0]:
            self._stale.popleft()

    def _next_walk(self) -> Iterator[Node]:
        members = self._stale[0]
        if not members:
            self._stale.popleft()
            return iter(())
        anchor, _ = members.popitem()
        return _leaves(anchor)


def _scopes_of(anchor: Anchor) -> tuple[Scope | Published, ...]:
    """Return what makes a root or mount stale; a mount depends on the system's tree as well."""
    if isinstance(anchor, Mount):
        return anchor.published, *scopes_of(anchor.published.namespace)
    assert isinstance(anchor, Root)
    return scopes_of(anchor.namespace)


def _leaves(anchor: Anchor) -> Iterator[Node]:
    """Yield the unpinned leaves below an anchor and, if it is a root, below its mounts."""
    if isinstance(anchor, Root):
        for mounts in list(anchor.mounts.values()):
            for mount in list(mounts.values()):
                yield from unpinned_leaves(mount)
    yield from unpinned_leaves(anchor)
