"""All blocks of a trace by last use: at which place of that order does a request find its own?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

_FIRST_OWNERS = 1024


class Run(NamedTuple):
    """Blocks that follow each other in a prompt and in the order of last use."""

    place: int  # of its first block, counted from the block that was used last: 1
    n_blocks: int


class RecencyOrder:
    """Blocks of prompts, the last used first; of one prompt, its head first.

    A cache of C blocks that gives up leaves by last use, tails first, holds the first C blocks of
    this order, whatever C is: prefixcache/design/0020-replay-methods.md. So the place at which a
    request finds a block is the smallest capacity that has it cached.

    A block is owned by the request that used it last. What a request owns is always the rest of
    its prompt from some depth on, for whoever uses one of its blocks uses all before it:

        prompt of request 7   | used again by request 9 |  owned by 7  |
                              0                                        n

    So the order is that of requests, the blocks of each by depth; a sum over later requests and
    a depth give a block's place. Blocks are any numbers that tell prefixes apart.

    Args:
        most_blocks: only so many are kept, the last used; None: all.

    Cost: O(1) a block, and O(log n) for each request that what is found was owned by.
    """

    def __init__(self, most_blocks: int | None = None) -> None:
        self._most_blocks = most_blocks
        self._owner: dict[int, int] = {}
        self._owned: list[list[int]] = []  # by request: its blocks, by depth
        self._sums = [0] * (_FIRST_OWNERS + 1)  # a Fenwick tree of how many each one owns
        self._oldest = 0  # no request before it owns any

    def __len__(self) -> int:
        return len(self._owner)

    def use(self, path: Sequence[int]) -> list[Run]:
        """Return where the leading blocks of a prompt are found, and put all of it first."""
        if len(self._owned) + 1 == len(self._sums):
            self._renumber()
        known = list(map(self._owner.get, path))
        runs, at = [], 0
        while at < len(path) and (owner := known[at]) is not None:
            n_blocks = known.count(owner)
            later = len(self._owner) - self._n_up_to(owner)
            runs.append(Run(later + 1, n_blocks))
            at += n_blocks
        self._take(path, known, runs)
        if self._most_blocks is not None and len(self._owner) > self._most_blocks:
            self._forget(len(self._owner) - self._most_blocks)
        return runs

    def keep(self, is_kept: Callable[[int], bool]) -> None:
        """Forget all blocks but those that `is_kept` tells. Cost: all blocks."""
        self._owned = [list(filter(is_kept, blocks)) for blocks in self._owned]
        self._renumber()

    def _take(self, path: Sequence[int], known: Sequence[int | None], runs: list[Run]) -> None:
        at = 0
        for run in runs:
            owner = known[at]
            assert owner is not None
            del self._owned[owner][: run.n_blocks]
            self._add(owner, -run.n_blocks)
            at += run.n_blocks
        newest = len(self._owned)
        self._owner.update(dict.fromkeys(path, newest))
        self._owned.append(list(path))
        self._add(newest, len(path))

    def _forget(self, n_blocks: int) -> None:
        """Drop the blocks that were used longest ago, tails first."""
        while n_blocks:
            blocks = self._owned[self._oldest]
            if not blocks:
                self._oldest += 1
                continue
            n_dropped = min(n_blocks, len(blocks))
            for block in blocks[-n_dropped:]:
                del self._owner[block]
            del blocks[-n_dropped:]
            self._add(self._oldest, -n_dropped)
            n_blocks -= n_dropped

    def _n_up_to(self, owner: int) -> int:
        """Return how many blocks are owned by `owner` and the requests before it."""
        index, total, sums = owner + 1, 0, self._sums
        while index:
            total += sums[index]
            index &= index - 1
        return total

    def _add(self, owner: int, change: int) -> None:
        index, sums = owner + 1, self._sums
        while index < len(sums):
            sums[index] += change
            index += index & -index

    def _renumber(self) -> None:
        """Number the requests that own something anew, with as much room again for others."""
        self._owned = [blocks for blocks in self._owned if blocks]
        self._owner = {block: owner for owner, blocks in enumerate(self._owned) for block in blocks}
        self._oldest = 0
        self._sums = [0] * (2 * len(self._owned) + _FIRST_OWNERS + 1)
        for owner, blocks in enumerate(self._owned):
            self._add(owner, len(blocks))
