"""Prefixes that are to outlast traffic: kept for a time, within a budget, not at all costs."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from prefixcache.index.accounts import SYSTEM_TENANT, Account, Accounts
from prefixcache.index.lazy_heap import LazyHeap
from prefixcache.index.nodes import Node


class Retention(NamedTuple):
    """How long, and against what, the path to one node is kept from its policy."""

    priority: int
    expires: float  # seconds of the cache's clock; inf: never by itself


class Retentions:
    """All retentions, by node, by when they end, and by which is to give way first.

    A kept node is not listed with its policy, so whatever is listed goes first. When requests
    need more, retentions are dropped one by one, the lowest priority first and of these the one
    that would have ended first; published prompts come last of all.
    """

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._of_node: dict[Node, Retention] = {}
        self.next_end = inf  # none ends before
        self._by_end = LazyHeap[float, Node]()
        self._by_weight: dict[Account, LazyHeap[Retention, Node]] = {}

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
            expires, priority = max(expires, known.expires), max(priority, known.priority)
        retention = self._of_node[node] = Retention(priority, expires)
        self._by_end.push(node, expires)
        self.next_end = min(self.next_end, expires)
        weights = self._by_weight.get(node.account)
        if weights is None:
            weights = self._by_weight[node.account] = LazyHeap()
        weights.push(node, retention)
        if known is None:
            self._keep_path(node)

    def drop(self, node: Node, now: float) -> None:
        """End the retention of `node`, if there is one. Cost: the ancestors that nobody keeps."""
        if self._of_node.pop(node, None) is None:
            return
        self._by_end.discard(node)
        self._by_weight[node.account].discard(node)
        self._release(node, now)

    def expire(self, now: float) -> None:
        """Drop what has ended. Cost: O(log n) each, nothing when there is none."""
        while (first := self._by_end.first()) is not None and first[0] <= now:
            self.drop(first[1], now)
        self.next_end = inf if first is None else first[0]

    def give_way(self, account: Account | None, now: float, *, spare_reserves: bool = True) -> bool:
        """Drop the weakest retention that room can be had from, of `account` or of anybody.

        What requests use now is passed over: its blocks stay anyway. Returns whether one was
        dropped. Cost: O(log n) each, those passed over included.

        Args:
            spare_reserves: of anybody but those who are within their reserve.
        """
        if account is not None:
            return self._drop_weakest_idle(account, now)
        givers = [a for a in self._by_weight if a.excess > 0 or not spare_reserves]
        givers.sort(key=lambda a: (a.tenant == SYSTEM_TENANT, -a.excess))
        return any(self._drop_weakest_idle(a, now) for a in givers)

    def drop_weakest(self, account: Account, now: float) -> bool:
        """Drop the weakest retention of `account`, used or not; return whether there was one."""
        weights = self._by_weight.get(account)
        first = None if weights is None else weights.first()
        if first is None:
            return False
        self.drop(first[1], now)
        return True

    def _drop_weakest_idle(self, account: Account, now: float) -> bool:
        weights = self._by_weight.get(account)
        if weights is None:
            return False
        in_use = []
        while (first := weights.first()) is not None and first[1].pins:
            in_use.append(first)
            weights.discard(first[1])
        if first is not None:
            self.drop(first[1], now)
        elif not in_use:
            del self._by_weight[account]
        for retention, node in in_use:
            weights.push(node, retention)
        return first is not None

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
