"""KV that lies elsewhere and is about to be written to a request's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prefixcache.engine.tiers.rows import in_rows
from prefixcache.index.spans import Runs, cut, n_blocks_in
from prefixcache.kv import KVStore
from prefixcache.kv.host import HostCopy, HostTier
from prefixcache.tiers import BlockRecord


class Piece(Protocol):
    """Consecutive blocks of a prompt in one tier. Not every group need have all of them."""

    tier: str
    start: int  # the first block, counted in the prompt
    n_blocks: int

    def has(self, group: int, block: int) -> bool:
        """Whether a layer group has a block of the piece."""

    def write(self, group: int, block: int, runs: Runs) -> None:
        """Write the blocks from `block` on, which the group has, to `runs` of the store."""


class HostPiece:
    """Blocks of one copy in host memory."""

    tier = "host"

    def __init__(
        self, host: HostTier, copy: HostCopy, first: int, start: int, n_blocks: int
    ) -> None:
        """Make it. `first`: which block of the copy is block `start` of the prompt."""
        self.start, self.n_blocks = start, n_blocks
        self._host = host
        self._copy = copy
        self._first = first
        self._first_of = [copy.first_of(group) for group in range(len(copy.parts))]

    def has(self, group: int, block: int) -> bool:
        """See `Piece`."""
        return block - self.start + self._first >= self._first_of[group]

    def write(self, group: int, block: int, runs: Runs) -> None:
        """See `Piece`."""
        first = block - self.start + self._first
        self._host.counters.read_bytes += self._host.arena.load(self._copy, group, first, runs)


class FetchedPiece:
    """Blocks that were read from a tier that outlives the process."""

    def __init__(
        self, store: KVStore, tier: str, records: Sequence[BlockRecord], start: int
    ) -> None:
        self.tier, self.start, self.n_blocks = tier, start, len(records)
        self._store = store
        self._records = records

    def has(self, group: int, block: int) -> bool:
        """See `Piece`."""
        return self._records[block - self.start].parts[group] is not None

    def write(self, group: int, block: int, runs: Runs) -> None:
        """See `Piece`."""
        at, rest = block - self.start, runs
        parts = [record.parts[group] for record in self._records[at : at + n_blocks_in(runs)]]
        for rows in in_rows([part for part in parts if part is not None]):
            here, rest = cut(rest, len(rows))
            first = 0
            for span in here:
                self._store.copy_in(group, span, rows[first : first + span.n_blocks])
                first += span.n_blocks


def write_between(
    pieces: Sequence[Piece], group: int, start: int, stop: int, runs: Runs, first_block: int
) -> int:
    """Write blocks `start` to `stop` - 1 of a prompt in one group; return how many.

    Args:
        runs: the request's blocks in the group.
        first_block: which block of the prompt the first of them is.
    """
    n_written = 0
    for piece in pieces:
        begin = max(start, piece.start)
        end = min(stop, piece.start + piece.n_blocks)
        if begin < end:
            piece.write(group, begin, _between(runs, begin - first_block, end - first_block))
            n_written += end - begin
    return n_written


def _between(runs: Runs, start: int, stop: int) -> Runs:
    return cut(cut(runs, stop)[0], start)[1]
