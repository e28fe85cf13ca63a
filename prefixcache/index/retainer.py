"""Which part of a request's path is retained, within its tenant's budget."""

from __future__ import annotations

from prefixcache.index.forest import Forest
from prefixcache.index.keeper import Keeper
from prefixcache.index.lease import Lease
from prefixcache.index.nodes import Anchor, Node
from prefixcache.index.retention import Retentions


class Retainer:
    """Makes retentions of at most `most_blocks` blocks for each tenant."""

    def __init__(
        self, keeper: Keeper, forest: Forest, retentions: Retentions, most_blocks: int
    ) -> None:
        self._keeper = keeper
        self._forest = forest
        self._retentions = retentions
        self._most_blocks = most_blocks

    def retain(self, lease: Lease, n_blocks: int, expires: float, priority: int) -> int:
        """Keep the first `n_blocks` blocks of a lease's path; return up to which block it is.

        What its tenant retained before gives way, what ends first before the rest; if that is not
        enough, only the first blocks are kept. What can be matched no more is not kept at all.
        """
        if not self._forest.is_storable(lease.anchor):
            return 0
        node = lease.node
        while not isinstance(node, Anchor) and _start_of(node) >= n_blocks:
            node = _above(node)
        if isinstance(node, Anchor):
            return 0
        node = self._keeper.split(node, n_blocks - _start_of(node))
        while not isinstance(node, Anchor):
            over = node.account.n_kept + _unkept_blocks(node) - self._most_blocks
            if over > 0 and self._retentions.drop_weakest(node.account, node.last_used):
                continue
            if over < node.n_blocks:
                node = self._keeper.split(node, node.n_blocks - max(over, 0))
                self._retentions.keep(node, expires, priority)
                return node.end_block
            node = _above(node)
        return 0


def _start_of(node: Node) -> int:
    return node.end_block - node.n_blocks


def _above(node: Node) -> Node:
    assert node.parent is not None
    return node.parent


def _unkept_blocks(node: Node) -> int:
    total = 0
    above: Node | None = node
    while above is not None and not above.keeps:
        total += above.n_blocks
        above = above.parent
    return total
