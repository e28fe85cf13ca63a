"""How a request's written blocks come into the tree."""

from __future__ import annotations

from math import inf

from prefixcache.index.lease import Lease
from prefixcache.index.nodes import Node
from prefixcache.index.published import Published
from prefixcache.index.spans import cut_groups
from prefixcache.index.tokens import TOKEN_BYTES, Packed
from prefixcache.index.tree import Match, child_of, find
from prefixcache.index.trees import Trees


class Committer:
    """Moves blocks from leases to the tree, or exchanges them for those that it has already."""

    def __init__(self, trees: Trees) -> None:
        self._keeper = trees.keeper
        self._windows = trees.windows
        self._retentions = trees.retentions
        self._observers = trees.observers
        self._hooks = trees.hooks
        self._locations = trees.locations
        self._block_bytes = trees.block.n_bytes

    def store(self, lease: Lease, tokens: Packed, n_full: int, now: float) -> None:
        """Bring the first `n_full` blocks of `tokens` into the tree, as far as they are not there.

        The walk starts at the lease's own node.
        """
        if self._hooks.is_running:
            self._hooks.refuse()
        size, n_before = self._block_bytes, lease.n_stored
        edge = tokens[n_before * size : n_full * size]
        if not isinstance(edge, bytes):
            edge = bytes(edge)
        children = lease.node.children
        if children is not None and edge[:TOKEN_BYTES] in children.by_token:
            self._join(lease, tokens, n_full, now)
            edge = edge[(lease.n_stored - n_before) * size :]
        if edge:
            n_before = lease.n_stored
            for end in self._windows.cuts(n_before, n_full):
                part = slice((lease.n_stored - n_before) * size, (end - n_before) * size)
                self._add(lease, edge[part], end, now)

    def _join(self, lease: Lease, tokens: Packed, n_full: int, now: float) -> None:
        """Follow what the tree knows: take over what is on the device, bring back what is away."""
        size, end = self._block_bytes, n_full * self._block_bytes // TOKEN_BYTES
        while lease.n_stored < n_full:
            match = find(lease.node, tokens, lease.n_stored, end, size, token_exact=False)
            if match.n_blocks > lease.n_stored:
                self._adopt(lease, match, now)
            known = self._locations.after(
                lease.node, memoryview(tokens)[: n_full * size], lease.n_stored
            )
            if not known:
                return
            at = lease.n_stored * size
            node = child_of(lease.node, bytes(tokens[at : at + size]))
            assert node is not None
            self._bring_back(lease, node, known[0].n_blocks)

    def _bring_back(self, lease: Lease, node: Node, n_blocks: int) -> None:
        """Give the lease's own blocks to the first of a node that has none on the device."""
        runs, rest = cut_groups(lease.own, n_blocks)
        filled = self._locations.fill(node, n_blocks, runs)
        if lease.window_hold is not None:
            self._windows.store(lease.window_hold, filled, filled.end_block)
        if self._observers.all:
            self._observers.stored(filled, 0, n_blocks)
        lease.n_written += n_blocks
        lease.move(filled, lease.n_stored + n_blocks, rest)

    def finish_prompt(self, lease: Lease, published: Published, n_written: int, now: float) -> None:
        """Store the last part of a published prompt that is all written; retain a pinned one."""
        if published.is_live and n_written >= published.n_tokens:
            self._store_tail(lease, published.tokens, now)
            if published.is_pinned:
                self._retentions.keep(lease.node, inf, 0)

    def _store_tail(self, lease: Lease, tokens: Packed, now: float) -> None:
        """Bring the last block of a published prompt into the tree, though it is not full."""
        tail = bytes(tokens[lease.n_stored * self._block_bytes :])
        if not tail:
            return
        n_blocks = lease.n_stored + 1
        known = child_of(lease.node, tail)
        if known is None:
            self._add(lease, tail, n_blocks, now)
        elif not known.runs[0]:
            self._bring_back(lease, known, known.n_blocks)
        else:
            self._adopt(lease, Match(known, n_blocks, known.n_blocks), now)

    def _adopt(self, lease: Lease, match: Match, now: float) -> None:
        """Exchange the lease's own blocks for those that the tree has for the same tokens."""
        node = self._keeper.split(match.node, match.edge_blocks)
        self._keeper.pin(node)
        self._keeper.unpin(lease.node, now)  # stays pinned: it is above `node`
        n_adopted = match.n_blocks - lease.n_stored
        duplicates, rest = cut_groups(lease.own, n_adopted)
        lease.account.free_held(duplicates, n_adopted)
        if lease.window_hold is not None:
            self._windows.adopt(lease.window_hold, node, lease.node)
        lease.move(node, match.n_blocks, rest)

    def _add(self, lease: Lease, edge: bytes, n_full: int, now: float) -> None:
        """Give the lease's next own blocks to the tree, below its node."""
        if n_full == lease.n_blocks:
            runs, rest = lease.own, lease.root.runs
        else:
            runs, rest = cut_groups(lease.own, n_full - lease.n_stored)
        n_blocks = n_full - lease.n_stored
        node = self._keeper.grow(lease.node, edge, runs, n_blocks, lease.priority, now)
        if lease.window_hold is not None:
            self._windows.store(lease.window_hold, node, n_full)
        if self._observers.all:
            self._observers.stored(node, node.n_blocks - n_blocks, n_blocks)
        lease.n_written += n_blocks
        lease.move(node, n_full, rest)
