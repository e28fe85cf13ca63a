"""What the rows of a step see: which positions, and in which slots those are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prefixcache.types import Span

TILE_ROWS = 128  # a longer chunk reads as several readers: its own causal part is cheaper so
STORED_ROWS = 16  # up to so many rows, a chunk's own keys are read back with the rest of its tail


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive positions in consecutive slots of the store."""

    position: int
    start: int  # slots
    stop: int

    @property
    def end(self) -> int:
        """The position after the last."""
        return self.position + self.stop - self.start

    def between(self, first: int, end: int) -> Run:
        """Return the part that holds positions first..end-1; empty where there are none."""
        shift = self.start - self.position
        first = min(max(first, self.position), self.end)
        end = max(min(end, self.end), first)
        return Run(first, first + shift, end + shift)


@dataclass(frozen=True, slots=True)
class Reader:
    """Consecutive rows of one chunk, and what they read from the store.

    A window of 6, rows 10 to 13, their own keys apart:

        position   4  5  6  7  8  9 |10 11 12 13
        row 10        x  x  x  x  x | x
        row 13                 x  x | x  x  x  x
                      ^        ^     ^
                      oldest   clear end = clear_end
    """

    start_row: int
    stop_row: int
    first: int  # position of its first row
    oldest: int  # the first position that any row sees
    clear: int  # from here to clear_end every row sees everything; empty where clear is beyond
    clear_end: int
    end: int  # of what is read from the store
    runs: tuple[Run, ...]  # of all that it reads and more, neighbouring slots joined
    has_own: bool  # whether the rows see one another causally, by the call's keys, not the store's

    @property
    def n_rows(self) -> int:
        """Rows, and so tokens."""
        return self.stop_row - self.start_row

    def between(self, first: int, end: int) -> Iterator[Run]:
        """Yield the runs that hold positions first..end-1."""
        return runs_between(self.runs, first, end)


def joined_runs(table: Sequence[Span], block_size: int, first_block: int = 0) -> tuple[Run, ...]:
    """Return a block table as runs that are as long as can be.

    `first_block`: which block of the sequence the table begins with.
    """
    runs: list[Run] = []
    position = first_block * block_size
    for span in table:
        start = span.first * block_size
        stop = start + span.n_blocks * block_size
        if runs and runs[-1].stop == start:
            runs[-1] = Run(runs[-1].position, runs[-1].start, stop)
        else:
            runs.append(Run(position, start, stop))
        position += stop - start
    return tuple(runs)


def runs_between(runs: Sequence[Run], first: int, end: int) -> Iterator[Run]:
    """Yield the parts of `runs` that hold positions first..end-1."""
    for run in runs:
        cut = run.between(first, end)
        if cut.start < cut.stop:
            yield cut


def readers_of(
    runs: tuple[Run, ...], window: int | None, first: int, n_rows: int, start_row: int
) -> Iterator[Reader]:
    """Yield the readers of a chunk of `n_rows` tokens from position `first`."""
    for offset in range(0, n_rows, TILE_ROWS):
        n = min(TILE_ROWS, n_rows - offset)
        yield _reader(runs, window, first + offset, n, start_row + offset)


def _reader(
    runs: tuple[Run, ...], window: int | None, first: int, n_rows: int, start_row: int
) -> Reader:
    is_stored = n_rows <= STORED_ROWS
    return Reader(
        start_row=start_row,
        stop_row=start_row + n_rows,
        first=first,
        oldest=0 if window is None else max(0, first - window + 1),
        clear=0 if window is None else max(0, first + n_rows - window),
        clear_end=first + 1 if is_stored else first,
        end=first + n_rows if is_stored else first,
        runs=runs,
        has_own=not is_stored,
    )


def split_at_lead(
    readers: Sequence[Reader], lead: int
) -> tuple[Sequence[Reader], Sequence[Reader]]:
    """Return readers of a lead that all rows see whatever the window, and of what comes after it.

    There are none of the lead alone where no reader has a hole behind it.
    """
    if not lead:
        return (), readers
    if all(reader.clear <= lead for reader in readers):
        return (), [replace(reader, oldest=0, clear=0) for reader in readers]
    ends = [min(lead, reader.clear_end) for reader in readers]
    pairs = list(zip(readers, ends, strict=True))
    return (
        [
            replace(reader, oldest=0, clear=0, clear_end=end, end=end, has_own=False)
            for reader, end in pairs
        ],
        [
            replace(reader, oldest=max(reader.oldest, end), clear=max(reader.clear, end))
            for reader, end in pairs
        ],
    )
