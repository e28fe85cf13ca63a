"""Prefixes that are to outlast traffic: kept for a time, within a budget, not at all costs."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import inf

from prefixcache.index.accounts import SYSTEM_TENANT, Account, Accounts
from prefixcache.index.nodes import Node

_DEAD_ENTRIES = 64  # that are never worth a clean-up


class Retention:
    """Keeps the path to one node from its policy. Void once dropped, or once the node has gone."""

    __slots__ = ("expires", "is_dropped", "node", "priority")

    def __init__(self, node: Node, expires: float, priority: int) -> None:
        self.node = node
        self.expires = expires  # seconds of the cache's clock; inf: never by itself
        self.priority = priority
        self.is_dropped = False


class Retentions:
    """All retentions, by node, by when they end, and by which is to give way first.

    A kept node is not listed with its policy, so whatever is listed goes first. When requests
    need more, retentions are dropped one by one, the lowest priority first and of these the one
    that would have ended first; published prompts come last of all.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._of_node: dict[Node, Retention] = {}
        self.by_end: list[tuple[float, int, Retention]] = []  # a heap; what ends next first
        self._by_weight: dict[Account, list[tuple[int, float, int, Retention]]] = {}
        self._serials = count()

    def nodes(self) -> set[Node]:
        """Return the nodes that retentions end at."""
        return set(self._of_node)

    def is_kept(self, node: Node) -> bool:
        """Return whether a retention ends at `node`."""
        return node in self._of_node

    def keep(self, node: Node, expires: float, priority: int) -> None:
        """Keep the path to `node` until `expires`; one that keeps it already lasts longer.

        Cost: the ancestors that were not kept, and O(log n).
        """
        known = self._of_node.get(node)
        if known is not None:
            known.is_dropped = True  # its place in the heaps is that of the old end
            expires, priority = max(expires, known.expires), max(priority, known.priority)
        retention = Retention(node, expires, priority)
        self._of_node[node] = retention
        serial = next(self._serials)
        if expires < inf:
            heappush(self.by_end, (expires, serial, retention))
        weights = self._by_weight.setdefault(node.account, [])
        heappush(weights, (priority, expires, serial, retention))
        if len(weights) > 2 * len(self._of_node) + _DEAD_ENTRIES:
            weights[:] = sorted(entry for entry in weights if not entry[-1].is_dropped)
        if len(self.by_end) > 2 * len(self._of_node) + _DEAD_ENTRIES:
            self.by_end = sorted(entry for entry in self.by_end if not entry[-1].is_dropped)
        if known is None:
            self._keep_path(node)

    def drop(self, node: Node, now: float) -> None:
        """End the retention of `node`, if there is one. Cost: the ancestors that nobody keeps."""
        retention = self._of_node.pop(node, None)
        if retention is not None:
            retention.is_dropped = True
            self._release(node, now)

    def expire(self, now: float) -> None:
        """Drop what has ended. Cost: O(log n) each, nothing when there is none."""
        while self.by_end and self.by_end[0][0] <= now:
            _, _, retention = heappop(self.by_end)
            if not retention.is_dropped:
                self.drop(retention.node, now)

    def give_way(self, account: Account | None, now: float, *, spare_reserves: bool = True) -> bool:
        """Drop the weakest retention, of `account` or of anybody; return whether there was one.

        Args:
            spare_reserves: of anybody but those who are within their reserve.
        """
        if account is not None:
            return self._drop_weakest(account, now)
        givers = [a for a in self._by_weight if a.excess > 0 or not spare_reserves]
        givers.sort(key=lambda a: (a.tenant == SYSTEM_TENANT, -a.excess))
        return any(self._drop_weakest(a, now) for a in givers)

    def _drop_weakest(self, account: Account, now: float) -> bool:
        weights = self._by_weight.get(account, [])
        while weights:
            _, _, _, retention = heappop(weights)
            if not retention.is_dropped:
                self.drop(retention.node, now)
                return True
        self._by_weight.pop(account, None)
        return False

    def _keep_path(self, node: Node) -> None:
        above: Node | None = node
        while above is not None:
            above.keeps += 1
            if above.keeps > 1:
                return
            above.account.n_kept += above.n_blocks
            self._accounts.n_kept += above.n_blocks
            above.account.policy.discard(above)
            above = above.parent

    def _release(self, node: Node, now: float) -> None:
        above: Node | None = node
        while above is not None:
            above.keeps -= 1
            if above.keeps:
                return
            account = above.account
            account.n_kept -= above.n_blocks
            self._accounts.n_kept -= above.n_blocks
            if above.n_blocks and not above.pins:
                above.last_used = max(above.last_used, now)
                account.policy.add(above)
                self._accounts.touch(account)
            above = above.parent
