"""How a request's written blocks come into the tree."""

from __future__ import annotations

from prefixcache.index.groups import GroupPools
from prefixcache.index.keeper import Keeper
from prefixcache.index.lease import Lease
from prefixcache.index.spans import cut_groups, join_groups
from prefixcache.index.tokens import TOKEN_BYTES
from prefixcache.index.tree import Match, find, lengthen, path_runs


class Committer:
    """Moves blocks from leases to the tree, or exchanges them for those that it has already."""

    def __init__(self, pools: GroupPools, keeper: Keeper, block_bytes: int) -> None:
        self._pools = pools
        self._keeper = keeper
        self._block_bytes = block_bytes

    def store(self, lease: Lease, tokens: bytes, n_full: int, now: int) -> None:
        """Bring the first `n_full` blocks of `tokens` into the tree, as far as they are not there.

        The walk starts at the lease's own node.
        """
        if n_full <= lease.n_stored:
            return
        size = self._block_bytes
        end = n_full * size // TOKEN_BYTES
        match = find(lease.node, tokens, lease.n_stored, end, block_bytes=size, token_exact=False)
        if match.n_blocks > lease.n_stored:
            self._adopt(lease, match, now)
        if n_full > lease.n_stored:
            self._add(lease, tokens[lease.n_stored * size : n_full * size])

    def _adopt(self, lease: Lease, match: Match, now: int) -> None:
        """Exchange the lease's own blocks for those that the tree has for the same tokens."""
        node = self._keeper.split(match.node, match.edge_blocks)
        self._keeper.pin(node)
        self._keeper.unpin(lease.node, now)  # stays pinned: it is above `node`
        stored, own = cut_groups(lease.runs, lease.n_stored)
        duplicates, rest = cut_groups(own, match.n_blocks - lease.n_stored)
        self._pools.free_held(duplicates)
        lease.runs = join_groups(stored, path_runs(node, lease.node), rest)
        lease.node, lease.n_stored = node, match.n_blocks

    def _add(self, lease: Lease, edge: bytes) -> None:
        """Give the lease's next own blocks to the tree, as more of its leaf or below its node."""
        n_blocks = len(edge) // self._block_bytes
        runs, _ = cut_groups(lease.own_runs(), n_blocks)
        node = lease.node
        if node.children is None and node.pins == 1 and node is not lease.root:
            lengthen(node, edge, runs)
        else:
            lease.node = self._keeper.grow(node, edge, runs)
        lease.n_stored += n_blocks
