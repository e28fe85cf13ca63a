"""Hits counted by the place, in the order of last use, at which they were found."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from prefixcache.traces.records import TraceRequest

Counts = npt.NDArray[np.int64]

_ROW_FIELDS = 6  # place, blocks, depth, block tokens, input tokens, weight
_MOST_NOTED_BLOCKS = 65_536  # then they are counted, all at once
_FIRST_PLACES = 1024


class Places:
    """Sums of hit blocks, tokens and attention pairs for each place. Places count from 1."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._n_noted_blocks = 0
        self._counts: Counts = np.zeros((3, _FIRST_PLACES), dtype=np.int64)  # [what, place - 1]

    def note(
        self, request: TraceRequest, place: int, n_blocks: int, depth: int, weight: int = 1
    ) -> None:
        """Count blocks of a request from `depth` on, found at `place` and the places after it.

        Args:
            weight: how many times each is counted.
        """
        row = (place, n_blocks, depth, request.block_tokens, request.input_tokens, weight)
        self._rows.extend(row)
        self._n_noted_blocks += n_blocks
        if self._n_noted_blocks >= _MOST_NOTED_BLOCKS:
            self._count()

    def halve(self) -> None:
        """Make of every two places one: what was noted up to now was twice as far apart."""
        self._count()
        pairs = self._counts.reshape(3, -1, 2).sum(axis=2)
        self._counts = np.concatenate([pairs, np.zeros_like(pairs)], axis=1)

    def found(self) -> tuple[Counts, Counts]:
        """Return the places at which anything was found, and its sums: [3, places]."""
        self._count()
        at = np.flatnonzero(self._counts[0])
        return at + 1, self._counts[:, at]

    def _count(self) -> None:
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, _ROW_FIELDS)
        self._rows = array("q")
        self._n_noted_blocks = 0
        if not len(rows):
            return
        n_blocks = rows[:, 1]
        row_of_block = np.repeat(np.arange(len(rows)), n_blocks)
        index_in_row = np.arange(len(row_of_block)) - np.repeat(
            n_blocks.cumsum() - n_blocks, n_blocks
        )
        place, _, depth, block_tokens, input_tokens, weight = rows[row_of_block].T
        at, depth = place + index_in_row - 1, depth + index_in_row
        start = np.minimum(depth * block_tokens, input_tokens)
        end = np.minimum((depth + 1) * block_tokens, input_tokens)
        pairs = (end * (end + 1) - start * (start + 1)) // 2
        self._reserve(int(at.max()) + 1)
        for sums, amount in zip(self._counts, (1, end - start, pairs), strict=True):
            np.add.at(sums, at, amount * weight)

    def _reserve(self, n_places: int) -> None:
        while self._counts.shape[1] < n_places:
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)], axis=1)
