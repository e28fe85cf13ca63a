"""Which slices of the store several readers of a step see, so that each is read once for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from prefixcache.engine.readers import Reader, Run

SHARED_TOKENS = 64  # a shorter run costs less to copy for each reader than to read in a call
SQUARE_TOKENS = 512  # a shorter run may be read once by each half of many rows, to be a longer one
SQUARE_ROWS = 128  # rows of each half then: reading keys again costs nothing beside them


@dataclass(frozen=True, slots=True)
class SharedRun:
    """A slice that readers first..stop-1 all see in full, with all their rows."""

    first: int  # readers, by index
    stop: int
    run: Run


def sharing_order(tables: Sequence[tuple[Run, ...]]) -> list[int]:
    """Return an order of chunks in which all that share a prefix stand side by side.

    Runs are compared from position 0, first slots first: those that begin alike are neighbours,
    however far they go together. Where nothing is shared, the order stays.
    """
    heads: dict[int, int] = {}
    keys = []
    for index, runs in enumerate(tables):
        head = heads.setdefault(runs[0].start, index) if runs else index
        keys.append((head, [(run.start, run.stop) for run in runs]))
    return sorted(range(len(tables)), key=keys.__getitem__)


def shared_runs(readers: Sequence[Reader]) -> list[SharedRun]:
    """Return what neighbouring readers share, what more of them share first.

    The tiles of one chunk see more and more of it. They are halved, so that what they read are
    squares and not strips: kernels are faster at them, and fewer rows are merged.

        one strip for all tiles        halves
        0                              0
        1 a                            1 a
        2 a b                          2 c c
        3 a b c                        3 c c d

    No position comes twice for a reader. Cost: O(readers ** 2 + runs).
    """
    together = [_common_end(one, other) for one, other in pairwise(readers)]
    found: list[SharedRun] = []
    todo = [(0, len(readers), 0)]
    while todo:
        first, stop, done = todo.pop()
        if stop - first < 2:
            continue
        end = min(together[first : stop - 1])
        middle = _middle(readers, together, first, stop, done)
        if middle is not None:
            todo += [(first, middle, done), (middle, stop, done)]
            continue
        begin = max(done, *(reader.clear for reader in readers[first:stop]))
        found += [
            SharedRun(first, stop, run)
            for run in readers[first].between(begin, end)
            if run.stop - run.start >= SHARED_TOKENS
        ]
        todo.extend(_parted(together, first, stop, max(done, end)))
    return found


def _middle(
    readers: Sequence[Reader], together: Sequence[int], first: int, stop: int, done: int
) -> int | None:
    """Return where to halve readers whose second half shares much more; None: nowhere."""
    middle = (first + stop) // 2
    if stop - middle < 2:
        return None
    short = min(together[first : stop - 1]) - done
    long = min(together[middle : stop - 1]) - done
    n_rows = min(
        readers[middle].start_row - readers[first].start_row,
        readers[stop - 1].stop_row - readers[middle].start_row,
    )
    is_worth_it = 0 < short < SQUARE_TOKENS and long >= 2 * short and n_rows >= SQUARE_ROWS
    return middle if is_worth_it else None


def _common_end(one: Reader, other: Reader) -> int:
    """Return up to which position all rows of both see the same slots, wherever that begins."""
    begin = max(one.clear, other.clear)
    end = min(one.clear_end, other.clear_end)
    for mine, theirs in zip(one.between(begin, end), other.between(begin, end), strict=False):
        if mine.start != theirs.start:
            return mine.position
        if mine.stop != theirs.stop:
            return min(mine.end, theirs.end)
    return end


def _parted(
    together: Sequence[int], first: int, stop: int, done: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the neighbours that go on together after `done`, as (first, stop, done)."""
    for index in range(first, stop - 1):
        if together[index] <= done:
            yield first, index + 1, done
            first = index + 1
    yield first, stop, done
