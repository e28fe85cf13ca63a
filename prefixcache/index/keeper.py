"""Pins nodes, lists those that may be given up, and gives them up."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from prefixcache.index.accounts import Account, Accounts
from prefixcache.index.events import Observers
from prefixcache.index.forest import Forest
from prefixcache.index.locations import Locations
from prefixcache.index.misses import Gone, MissReason
from prefixcache.index.nodes import Anchor, Mount, Node, Root
from prefixcache.index.retention import Retentions
from prefixcache.index.spans import GroupRuns
from prefixcache.index.tree import attach, detach, hand_pin_down, merge, trim
from prefixcache.index.windows import Windows

_EVICTED = MissReason.EVICTED  # to look up a member of an enumeration takes longer than a call


class Keeper:
    """Keeps a node's pins, its account's counts and its policy's list in step.

    A node with KV on the device, other than a root or mount, is listed with its account's policy
    exactly while it is neither pinned nor kept. What is below an unpinned node is unpinned too: so
    all cached blocks can be had in the end.
    """

    def __init__(
        self,
        accounts: Accounts,
        forest: Forest,
        retentions: Retentions,
        observers: Observers,
        gone: Gone,
        locations: Locations,
        windows: Windows,
        block_bytes: int,
    ) -> None:
        self._accounts = accounts
        self._forest = forest
        self._retentions = retentions
        self._observers = observers
        self._gone = gone
        self._locations = locations
        self._windows = windows
        self._block_bytes = block_bytes
        self.evicted_blocks = 0  # given up by policies' choice
        self.reclaimed_blocks = 0  # given up because they were invalidated

    def pin(self, node: Node) -> None:
        """Add a pin to `node`. Cost: the ancestors that were unpinned, the first pinned one."""
        account, n_blocks = node.account, 0
        above = node
        while True:
            above.pins += 1
            if above.pins > 1:
                break
            if above.n_blocks:
                n_blocks += above.n_blocks
                if not above.keeps:
                    account.policy.discard(above)
            elif above.source is not None:
                self.pin(above.source)
            parent = above.parent
            if parent is None or parent.parent is None:
                break  # a root counts no children
            above = parent
        if n_blocks:
            account.pin(n_blocks)

    def unpin(self, node: Node, now: float) -> None:
        """Take a pin off `node`; what nobody pins any more was last used `now`. Cost: as `pin`."""
        account, n_blocks = node.account, 0
        above = node
        while True:
            above.pins -= 1
            if above.pins:
                break
            above.last_used = now
            if above.n_blocks:
                n_blocks += above.n_blocks
                if not above.keeps:
                    account.policy.add(above)
            elif above.source is not None:
                assert isinstance(above, Mount)  # nothing else has a source
                self.unpin(above.source, now)
                above.source = None
            parent = above.parent
            if parent is None or parent.parent is None:
                break  # a root counts no children
            above = parent
        if n_blocks:
            account.unpin(n_blocks)
            if not account.is_touched:
                self._accounts.touch(account)

    def unpinned_blocks(self, node: Node, edge_blocks: int) -> int:
        """Return how many blocks would turn held if `node`, cut to `edge_blocks`, were pinned."""
        total = 0
        above: Node | None = node
        while above is not None and not above.pins:
            total += edge_blocks if above is node else above.n_blocks
            above = above.parent
        return total

    def use(self, node: Node, priority: int) -> None:
        """Count a use of `node` and of all above it, a published prompt's nodes included."""
        above: Node | None = node
        while above is not None:
            above.hits += 1
            if priority:
                above.priority = max(above.priority, priority)
            above = above.parent if above.n_blocks else above.source

    def split(self, node: Node, n_blocks: int) -> Node:
        """Return the node that ends after the first `n_blocks` blocks of `node`.

        That is `node` itself, or a new one above it which takes those blocks and which the caller
        pins or keeps at once.
        """
        if n_blocks == node.n_blocks:
            return node
        return self._locations.split(node, n_blocks)

    def grow(
        self, parent: Node, edge: bytes, runs: GroupRuns, n_blocks: int, priority: int, now: float
    ) -> Node:
        """Store held blocks below `parent`, where one lease ends, and return where it ends then.

        That is a new child, which takes over the lease's pin. If nobody else uses the nodes
        above, those no longer than what was added become one with it: a conversation that grows
        by small turns has few nodes, and each token is moved few times. Half a block stays a node
        of its own, for a walk goes from edge to edge by whole blocks.
        """
        end_block = parent.end_block + n_blocks
        child = Node(parent.account, edge, runs, n_blocks, end_block, now, priority)
        attach(parent, child, self._block_bytes)
        hand_pin_down(child)
        is_whole = len(edge) == n_blocks * self._block_bytes
        while is_whole and parent.n_blocks <= child.n_blocks and self._is_private(parent):
            above = parent.parent
            assert above is not None
            merge(child)
            parent = above
        return child

    def evict(
        self, n_blocks: int, now: float, *, asking: Account | None = None, most_own: int = 0
    ) -> int:
        """Give up at most `n_blocks` positions: stale trees first, then what policies choose.

        Tail blocks go before what they depend on. Returns how many were freed.

        Args:
            asking: who needs the room: it spares the others' reserves. None: nothing is spared.
            most_own: how many it gives itself at most.

        Cost: O(log n) per node given up; independent of how many are kept.
        """
        freed = self.reclaim(n_blocks) if self._forest.has_stale else 0
        while freed < n_blocks:
            account = self._accounts.giver(now, asking)
            if account is None:
                break
            most = n_blocks - freed
            if asking is not None:
                most = min(most, most_own if account is asking else account.excess)
            given = self.evict_from(account, most, now) if most > 0 else 0
            if not given:
                break
            if account is asking:
                most_own -= given
            freed += given
        return freed

    def evict_from(self, account: Account, n_blocks: int, now: float) -> int:
        """Give up at most `n_blocks` of the account's next victim; return how many went.

        While nobody else has anything cached its other victims follow, for no other account could
        have its turn.
        """
        freed = 0
        while (victim := account.policy.victim(now)) is not None:
            assert isinstance(victim, Node)
            freed += self._give_up(victim, n_blocks - freed, _EVICTED)
            if freed == n_blocks or not account.has_all_cached:
                break
        account.evicted_blocks += freed
        self.evicted_blocks += freed
        return freed

    def expire(self, accounts: Iterable[Account], now: float) -> int:
        """Give up what policies say is overdue; return how many blocks went."""
        freed = 0
        for account in accounts:
            while (entry := account.policy.overdue(now)) is not None:
                assert isinstance(entry, Node)
                n_given = self._give_up(entry, entry.n_blocks, _EVICTED)
                account.evicted_blocks += n_given
                freed += n_given
        self.evicted_blocks += freed
        return freed

    def reclaim(self, n_blocks: int | None = None) -> int:
        """Give up at most `n_blocks` positions (None: all) of stale trees that nobody pins."""
        freed = 0
        while n_blocks is None or freed < n_blocks:
            leaf = self._forest.stale_leaf()
            if leaf is None:
                break
            if leaf.keeps:
                self._retentions.drop(leaf, leaf.last_used)
            left = leaf.n_blocks if n_blocks is None else n_blocks - freed
            freed += self._give_up(leaf, left, MissReason.OLD_GENERATION)
        self.reclaimed_blocks += freed
        return freed

    def reclaim_path(self, node: Node, *, spare_kept: bool = False) -> None:
        """Give up a stale tree's `node` and its ancestors, as far as they are unpinned leaves.

        Args:
            spare_kept: only as far as nothing is retained.

        Cost: what it frees.
        """
        while not (node.pins or node.children or isinstance(node, Anchor)):
            parent = node.parent
            if parent is None or (spare_kept and node.keeps):
                return
            if node.keeps:
                self._retentions.drop(node, node.last_used)
            self.reclaimed_blocks += self._give_up(node, node.n_blocks, MissReason.OLD_GENERATION)
            node = parent

    def forget_copy(self, handle: Hashable) -> None:
        """Forget what lies nowhere but in a copy that the lower tier has lost."""
        for node in self._locations.lose(handle):
            if not node.runs[0] and node.parent is not None:
                self._drop_away(node)

    def drop_if_empty(self, anchor: Anchor) -> None:
        """Forget a root or mount when it has no tokens and no leases left."""
        if anchor.children is not None or anchor.pins:
            return
        if isinstance(anchor, Mount):
            root = anchor.parent
            self._forest.drop(anchor)
            if isinstance(root, Root):  # else it was dropped before
                self.drop_if_empty(root)
                self.drop_if_empty(anchor.system_root)
        elif isinstance(anchor, Root) and not anchor.mounts and not anchor.n_mounted:
            self._forest.drop(anchor)

    def _is_private(self, node: Node) -> bool:
        """Return whether only one lease uses `node`, and it ends below."""
        return (
            node.n_blocks > 0
            and not self._windows.pools
            and node.pins == 1
            and not node.keeps
            and node.copy is None
            and node.children is not None
            and node.children.n == 1
        )

    def _give_up(self, leaf: Node, at_most: int, reason: MissReason) -> int:
        """Free a leaf's last blocks, at most `at_most`; with its last one the leaf goes.

        Where the lower tier takes them the tokens stay known, and the leaf with them.
        """
        if not leaf.runs[0]:
            self._drop_away(leaf)
            return 0
        account = leaf.account
        n_given = leaf.n_blocks if leaf.n_blocks < at_most else at_most
        kept = leaf.n_blocks - n_given
        if self._observers.all:
            self._observers.removed(leaf, kept, n_given)
        at = kept * self._block_bytes
        block = leaf.edge[at : at + self._block_bytes]
        self._gone.note(account.tenant, leaf.end_block - n_given, block, reason)
        if self._locations.tier is not None and reason is _EVICTED:
            runs = self._locations.demote(leaf, n_given)
            if runs is not None:
                account.free_cached(runs, n_given)
                if not kept:
                    account.policy.discard(leaf)
                    self._expose(leaf.parent)
                return n_given
        if leaf.children is not None:
            self._locations.drop_below(leaf)
        if self._windows.pools:
            self._windows.give_up(leaf, n_given)
        if kept:
            account.free_cached(trim(leaf, n_given, self._block_bytes), n_given)
            return n_given
        account.policy.discard(leaf)
        account.free_cached(leaf.runs, n_given)
        if leaf.copy is not None:
            self._locations.drop_copy(leaf)
        parent = detach(leaf)
        if not parent.n_resident:  # most leaves have siblings, and no call for them
            self._expose(parent)
        return n_given

    def _drop_away(self, node: Node) -> None:
        """Take an away node, and all below it, out of the tree."""
        self._locations.drop_below(node)
        self._locations.drop_copy(node)
        parent = detach(node)
        if isinstance(parent, Anchor):
            self.drop_if_empty(parent)

    def _expose(self, parent: Node | None) -> None:
        """Note that `parent` has lost a child with KV on the device."""
        if parent is None or parent.n_resident:
            return
        if isinstance(parent, Anchor):
            self.drop_if_empty(parent)
        elif not (parent.pins or parent.keeps):
            parent.account.policy.expose(parent)
