"""Which cached leaf is given up next."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Protocol

from prefixcache.index.tree import NodeId

_SLACK_ENTRIES = 64  # dead heap entries that are never worth a clean-up


class EvictionPolicy(Protocol):
    """Orders the nodes that may be given up; it frees nothing itself.

    The cache promises serial calls, and that a parent is listed only after its last child has
    left and was last used no earlier than any of them. The policy promises amortised O(log n) per
    call and to keep no reference to the tree.
    """

    def add(self, node: NodeId, *, n_tokens: int, last_used: float) -> None:
        """`node` is an unpinned leaf whose edge has `n_tokens` tokens. Known nodes are updated.

        `last_used` is in units of the cache's clock and may lie before that of earlier calls:
        a parent turns into a leaf long after its last use.
        """

    def discard(self, node: NodeId) -> None:
        """`node` was pinned, gained a child or left the tree. Unknown ids are ignored."""

    def victim(self) -> NodeId | None:
        """Return the next node to give up, still listed, or None when there is none."""


class LruPolicy:
    """Least recently used first.

    A heap of (last use, node). Nodes that are discarded or used again leave dead entries behind;
    they are dropped when they come up, and all at once when they outnumber the living.
    """

    def __init__(self) -> None:
        self._last_used: dict[NodeId, float] = {}
        self._heap: list[tuple[float, NodeId]] = []

    def add(self, node: NodeId, *, n_tokens: int, last_used: float) -> None:
        """List `node`. Cost: O(log n), amortised."""
        if self._last_used.get(node) == last_used:
            return
        self._last_used[node] = last_used
        heappush(self._heap, (last_used, node))
        if len(self._heap) > 2 * len(self._last_used) + _SLACK_ENTRIES:
            self._heap = [(used, known) for known, used in self._last_used.items()]
            heapify(self._heap)

    def discard(self, node: NodeId) -> None:
        """Take `node` off the list. Cost: O(1)."""
        self._last_used.pop(node, None)

    def victim(self) -> NodeId | None:
        """Return the node that was last used longest ago. Cost: O(log n), amortised."""
        while self._heap:
            last_used, node = self._heap[0]
            if self._last_used.get(node) == last_used:
                return node
            heappop(self._heap)
        return None
