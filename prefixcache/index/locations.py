"""KV that is not on the device: what left it for a lower tier, and how it comes back."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple, Protocol

from prefixcache.index.events import BlockEvent
from prefixcache.index.hooks import Hooks
from prefixcache.index.nodes import Copy, Node
from prefixcache.index.spans import GroupRuns
from prefixcache.index.tokens import TOKEN_BYTES, Packed, common_prefix_tokens
from prefixcache.index.tree import child_of, cut_tail, detach, hand_pin_down, split
from prefixcache.index.windows import Windows


class LowerTier(Protocol):
    """Keeps the KV of blocks that leave the device.

    It may look, but not change the cache: that raises HookError. What it raises is logged, and
    counts as a refusal.
    """

    def demote(self, event: BlockEvent) -> Hashable | None:
        """Take a copy of these blocks, before they are given to somebody else.

        Returns a handle of the tier's own, or None to let them be forgotten.
        """

    def forget(self, handle: Hashable) -> None:
        """Nothing in the tree names this copy any more."""


class AwayBlocks(NamedTuple):
    """Consecutive blocks of a prompt that lie in a lower tier."""

    handle: Hashable
    first_block: int  # in that copy
    n_blocks: int
    start_block: int  # in the prompt


class Locations:
    """Which nodes have a copy in the lower tier.

    A node is on the device, or away, or both: what came back keeps its copy, so that leaving
    again costs nothing. Whatever is below an away node is away as well.
    """

    def __init__(
        self,
        tier: LowerTier | None,
        hooks: Hooks,
        windows: Windows,
        no_runs: GroupRuns,
        block_bytes: int,
    ) -> None:
        self.tier = tier
        self._hooks = hooks
        self._windows = windows
        self._no_runs = no_runs
        self._block_bytes = block_bytes
        self._nodes_of: dict[Hashable, dict[Node, None]] = {}

    def demote(self, leaf: Node, n_blocks: int) -> GroupRuns | None:
        """Make the last `n_blocks` blocks of a leaf leave the device, if the tier has them.

        Returns the blocks, which the caller frees, or None: they are to be forgotten. A leaf that
        keeps blocks stays what it is, with a new node below it for those that left.
        """
        if self.tier is None:
            return None
        kept = leaf.n_blocks - n_blocks
        copy = leaf.copy
        if copy is None:
            event = BlockEvent(leaf, kept, n_blocks, self._block_bytes)
            handle = self._hooks.tell(self.tier.demote, event)
            if handle is None:
                return None
            copy = Copy(handle, -kept)
        gone = leaf
        if self._windows.pools:
            self._windows.give_up(leaf, n_blocks)
        if kept:
            gone = cut_tail(leaf, kept, self._block_bytes)
            gone.windows = gone.window_users = self._windows.none
            gone.copy = Copy(copy.handle, copy.first_block + kept)
            self._nodes_of.setdefault(copy.handle, {})[gone] = None
        elif leaf.copy is None:
            leaf.copy = copy
            self._nodes_of.setdefault(copy.handle, {})[leaf] = None
        runs, gone.runs = gone.runs, self._no_runs
        assert gone.parent is not None
        gone.parent.n_resident -= 1
        return runs

    def fill(self, node: Node, n_blocks: int, runs: GroupRuns) -> Node:
        """Put the first `n_blocks` blocks of an away node on the device, in `runs`; return them.

        They are pinned by the lease that had the blocks, and ended at the parent.
        """
        upper = self.split(node, n_blocks) if n_blocks < node.n_blocks else node
        upper.runs = runs
        hand_pin_down(upper)
        assert upper.parent is not None
        upper.parent.n_resident += 1
        return upper

    def split(self, node: Node, n_blocks: int) -> Node:
        """Split a node, and share its copy between the halves."""
        copy = node.copy
        upper = split(node, n_blocks, self._block_bytes)
        if self._windows.pools:
            self._windows.split(upper, node)
        if copy is not None:
            upper.copy = copy
            node.copy = Copy(copy.handle, copy.first_block + n_blocks)
            self._nodes_of[copy.handle][upper] = None
        return upper

    def drop_copy(self, node: Node) -> None:
        """Let the tier forget the copy of a node that leaves the tree, if no other shares it."""
        copy, node.copy = node.copy, None
        if copy is None or self.tier is None:
            return
        nodes = self._nodes_of[copy.handle]
        del nodes[node]
        if not nodes:
            del self._nodes_of[copy.handle]
            self._hooks.tell(self.tier.forget, copy.handle)

    def drop_below(self, node: Node) -> None:
        """Forget all that is below a node; nothing of it is on the device."""
        stack = [node]
        while stack:
            below = stack[-1]
            children = () if below.children is None else tuple(below.children)
            if children:
                stack.extend(children)
                continue
            stack.pop()
            if below is not node:
                detach(below)
                self.drop_copy(below)

    def lose(self, handle: Hashable) -> list[Node]:
        """Note that the tier has a copy no more, and return the nodes that named it."""
        nodes = list(self._nodes_of.pop(handle, ()))
        for node in nodes:
            node.copy = None
        return nodes

    def handles(self) -> dict[Hashable, int]:
        """Return how many nodes name each copy."""
        return {handle: len(nodes) for handle, nodes in self._nodes_of.items()}

    def after(self, node: Node, tokens: Packed, start_block: int) -> list[AwayBlocks]:
        """Return which whole blocks of `tokens` from `start_block` on lie away, below `node`."""
        found: list[AwayBlocks] = []
        size = self._block_bytes
        at = start_block * size
        child = _child_for(node, tokens, at, size)
        while child is not None and child.copy is not None and not child.runs[0]:
            n_alike = _blocks_alike(child.edge, memoryview(tokens)[at:], size)
            copy = child.copy
            found.append(AwayBlocks(copy.handle, copy.first_block, n_alike, at // size))
            if n_alike < child.n_blocks:
                break
            at += n_alike * size
            child = _child_for(child, tokens, at, size)
        return found


def _child_for(node: Node, tokens: Packed, at: int, block_bytes: int) -> Node | None:
    block = bytes(tokens[at : at + block_bytes])
    if len(block) < block_bytes:
        return None  # half a block is a published prompt's end, and read by the system alone
    return child_of(node, block)


def _blocks_alike(edge: bytes, tokens: Packed, block_bytes: int) -> int:
    return common_prefix_tokens(edge, 0, tokens, 0) * TOKEN_BYTES // block_bytes
