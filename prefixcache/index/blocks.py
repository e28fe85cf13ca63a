"""The blocks of one layer group: which are free, in extents that are as long as they can be."""

from __future__ import annotations

from prefixcache.errors import BooksError, ConfigError
from prefixcache.index.spans import Runs
from prefixcache.types import BlockId, Span

_FIRST_MARKS = 4096  # blocks that are marked from the start: a pool takes no memory for its size


class BlockPool:
    """Gives out blocks in long runs and takes them back.

        block   0 1 2 3 4 5 6 7 8 9
        is_free 1 1 0 0 0 1 1 0 0 0     extents: (0, 2) and (5, 2); the tail: from 8 on

    Extents never touch each other. They are found by their first block, by the block after their
    last, and by size: one unordered set for the lengths from each power of two to the next, and a
    bit for each set that is not empty. What lies free at the pool's end, the tail, is in no
    extent and not marked, but known by its first block alone: while nothing else is free, which
    is so until something is freed, taking blocks only moves that.
    """

    def __init__(self, n_blocks: int) -> None:
        if n_blocks < 1:
            raise ConfigError("pool_blocks", n_blocks, "must be at least 1")
        self.n_blocks = n_blocks
        self.n_free = 0
        self._is_free = bytearray(min(n_blocks, _FIRST_MARKS))  # grows to the last block freed
        self._marks = memoryview(self._is_free)  # the same; writes a slice without copying it first
        self._length_from: dict[int, int] = {}  # first block -> length
        self._first_until: dict[int, int] = {}  # block after the last -> first block
        self._firsts_of: list[dict[int, None]] = [{} for _ in range(n_blocks.bit_length())]
        self._sizes = 0  # bit i: there is an extent of 2**i to 2**(i + 1) - 1 blocks
        self._tail_first = n_blocks  # from here on all are free
        self.free(Span(BlockId(0), n_blocks))

    @property
    def longest_free_run(self) -> int:
        """The most consecutive free blocks. Cost: the extents of at least half that length."""
        n_tail, sizes = self.n_blocks - self._tail_first, self._sizes
        if not sizes:
            return n_tail
        longest = list(self._firsts_of[sizes.bit_length() - 1])  # also for other threads
        return max([n_tail, *[self._length_from.get(first, 0) for first in longest]])

    def allocate(self, n_blocks: int, after: Runs = ()) -> Runs:
        """Take `n_blocks` blocks, which are known to be free, in few runs.

        Args:
            after: what the caller has. Where the blocks after its last one are free they come
                first, so that the run grows; then an extent that holds all the rest and is little
                longer, if there is one; then long ones.

        Cost: O(1) per run, besides marking each block.
        """
        taken: Runs = ()
        if not self._sizes and n_blocks:
            return (self._take_tail(n_blocks),)
        if after and n_blocks:
            first = after[-1].first + after[-1].n_blocks
            if first in self._length_from:
                taken = (self._take_from(first, n_blocks),)
                n_blocks -= taken[0].n_blocks
            elif first == self._tail_first < self.n_blocks:
                taken = (self._take_tail(min(n_blocks, self.n_blocks - first)),)
                n_blocks -= taken[0].n_blocks
        while n_blocks:
            first = self._fitting(n_blocks)
            if first == self._tail_first:
                span = self._take_tail(min(n_blocks, self.n_blocks - first))
            else:
                span = self._take_from(first, n_blocks)
            n_blocks -= span.n_blocks
            taken = (*taken, span)
        return taken

    def free(self, span: Span) -> None:
        """Give blocks back. Raises BooksError when one of them is free already. Cost: O(1)."""
        first, length = span
        until = first + length
        if first < 0 or length < 1 or until > self.n_blocks:
            raise BooksError(f"blocks {first}+{length} are not in a pool of {self.n_blocks}")
        if 1 in self._is_free[first:until] or until > self._tail_first:
            marked = self._is_free.find(1, first, until)
            block = marked if marked >= 0 else max(first, self._tail_first)
            raise BooksError(f"block {block} of {first}+{length} is freed a second time")
        self.n_free += length
        before = self._first_until.pop(first, None)
        if until == self._tail_first:
            if before is not None:
                self._unfile(before, first - before)
                del self._length_from[before]
                self._marks[before:first] = bytes(first - before)
                first = BlockId(before)
            self._tail_first = first
            return
        if until > len(self._is_free):
            self._mark_up_to(until)
        self._marks[first:until] = b"\x01" * length
        following = self._length_from.pop(until, None)
        if following is not None:
            self._unfile(until, following)
            length += following
            until += following
        if before is not None:
            length += first - before
            if length.bit_length() == (first - before).bit_length():
                self._length_from[before] = length
                self._first_until[until] = before
                return
            self._unfile(before, first - before)
            first = BlockId(before)
        self._first_until[until] = first
        self._length_from[first] = length
        size = length.bit_length() - 1
        self._firsts_of[size][first] = None
        self._sizes |= 1 << size

    def has_free(self, span: Span) -> bool:
        """Return whether all of these blocks are free. Cost: looks at their marks."""
        first, length = span
        n_marked = min(length, self._tail_first - first)  # the tail is not marked
        return n_marked <= 0 or self._is_free.count(1, first, first + n_marked) == n_marked

    def take(self, span: Span) -> None:
        """Take these blocks, which are known to be free. Cost: marks each block of their extent."""
        first, until = span.first, span.first + span.n_blocks
        if first >= self._tail_first:
            begin = self._tail_first
            self._take_tail(until - begin)
        else:
            begin = self._is_free.rfind(0, 0, first) + 1
            end = begin + self._length_from[begin]
            self._take_from(begin, end - begin)
            if end > until:
                self.free(Span(BlockId(until), end - until))
        if first > begin:
            self.free(Span(BlockId(begin), first - begin))

    def free_spans(self) -> list[Span]:
        """Return every free extent by position. Cost: sorts them; for checks and reports."""
        spans = [Span(BlockId(first), n) for first, n in sorted(self._length_from.items())]
        n_tail = self.n_blocks - self._tail_first
        return [*spans, Span(BlockId(self._tail_first), n_tail)] if n_tail else spans

    def check(self) -> None:
        """Prove that extents and marks agree. Raises BooksError."""
        marks = bytearray(len(self._is_free))
        for first, length in self._length_from.items():
            marks[first : first + length] = b"\x01" * length
            if self._first_until.get(first + length) != first:
                raise BooksError(f"extent {first}+{length} is not known by its end")
            if first not in self._firsts_of[length.bit_length() - 1]:
                raise BooksError(f"extent {first}+{length} is not known by its size")
            if first + length in self._length_from or first + length == self._tail_first:
                raise BooksError(f"extent {first}+{length} touches the next one")
        n_found = sum(marks) + self.n_blocks - self._tail_first
        if marks != self._is_free or n_found != self.n_free:
            raise BooksError(f"{n_found} blocks in extents and tail, {self.n_free} counted free")
        known = (len(self._first_until), sum(len(firsts) for firsts in self._firsts_of))
        if known != (len(self._length_from),) * 2:
            raise BooksError(f"{len(self._length_from)} extents, {known} by end and by size")
        sizes = sum(1 << i for i, firsts in enumerate(self._firsts_of) if firsts)
        if sizes != self._sizes:
            raise BooksError(f"sizes {sizes:b} are there, {self._sizes:b} are noted")

    def _mark_up_to(self, until: int) -> None:
        """Have marks for the blocks before `until`. O(1) a block, amortised."""
        n_marks = min(max(until, 2 * len(self._is_free)), self.n_blocks)
        self._marks.release()
        self._is_free.extend(bytes(n_marks - len(self._is_free)))
        self._marks = memoryview(self._is_free)

    def _fitting(self, n_blocks: int) -> int:
        """Return the first block of an extent that holds `n_blocks`, or else of a long one."""
        sizes, size = self._sizes, n_blocks.bit_length() - 1
        if sizes >> size & 1:  # extents of its own size: some of them hold it
            first = _any_of(self._firsts_of[size])
            if self._length_from[first] >= n_blocks:
                return first
        larger = sizes >> size + 1
        n_tail = self.n_blocks - self._tail_first
        if (
            not larger
            and n_tail
            and (n_tail >= n_blocks or n_tail.bit_length() > sizes.bit_length())
        ):
            return self._tail_first
        size = size + (larger & -larger).bit_length() if larger else sizes.bit_length() - 1
        return _any_of(self._firsts_of[size])

    def _take_tail(self, n_blocks: int) -> Span:
        first = self._tail_first
        self._tail_first = first + n_blocks
        self.n_free -= n_blocks
        return tuple.__new__(Span, (first, n_blocks))  # half of what `Span` would cost

    def _take_from(self, first: int, at_most: int) -> Span:
        """Take the beginning of an extent."""
        length = self._length_from.pop(first)
        n_taken = min(length, at_most)
        left = length - n_taken
        size, size_left = length.bit_length() - 1, left.bit_length() - 1
        del self._firsts_of[size][first]
        if left:
            self._length_from[first + n_taken] = left
            self._first_until[first + length] = first + n_taken
            self._firsts_of[size_left][first + n_taken] = None
            self._sizes |= 1 << size_left
        else:
            del self._first_until[first + length]
        if not self._firsts_of[size]:
            self._sizes ^= 1 << size
        self._marks[first : first + n_taken] = bytes(n_taken)
        self.n_free -= n_taken
        return Span(BlockId(first), n_taken)

    def _unfile(self, first: int, length: int) -> None:
        size = length.bit_length() - 1
        firsts = self._firsts_of[size]
        del firsts[first]
        if not firsts:
            self._sizes ^= 1 << size


def _any_of(firsts: dict[int, None]) -> int:
    first, _ = firsts.popitem()  # unlike a peek, costs the same however often it is done
    firsts[first] = None
    return first
