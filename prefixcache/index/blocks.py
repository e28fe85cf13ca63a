"""The blocks of one layer group: free extents, and how many are free, cached and held."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from prefixcache.errors import BooksError, ConfigError, PoolExhaustedError
from prefixcache.types import BlockId, PoolCounts, Span


class BlockPool:
    """Gives out blocks in long runs and knows the state of each.

    A block is free, held (some running request's) or cached (the tree's alone). Allocation makes
    it held; `pin` and `unpin` move whole runs between cached and held; the two `free_` methods
    give blocks back.

        block   0 1 2 3 4 5 6 7 8 9
        is_free 1 1 0 0 0 1 1 1 1 0     extents: (0, 2) and (5, 4)

    Extents never touch each other. They are found by their first block, by the block after their
    last, and by length: one unordered set per length that occurs, the lengths sorted. A pool of
    n blocks has fewer than sqrt(2 n) different lengths.
    """

    def __init__(self, n_blocks: int) -> None:
        if n_blocks < 1:
            raise ConfigError("pool_blocks", n_blocks, "must be at least 1")
        self.n_blocks = n_blocks
        self._is_free = bytearray(n_blocks)
        self._length_from: dict[int, int] = {}  # first block -> length
        self._first_until: dict[int, int] = {}  # block after the last -> first block
        self._firsts_of: dict[int, dict[int, None]] = {}  # length -> first blocks
        self._lengths: list[int] = []
        self._free = self._cached = self._held = 0
        self._give_back(Span(BlockId(0), n_blocks))

    @property
    def counts(self) -> PoolCounts:
        """Blocks by state, as of now."""
        return PoolCounts(free=self._free, cached=self._cached, held=self._held)

    @property
    def n_free(self) -> int:
        """Blocks that can be allocated now."""
        return self._free

    @property
    def n_cached(self) -> int:
        """Blocks that only the tree has."""
        return self._cached

    @property
    def longest_free_run(self) -> int:
        """The most consecutive free blocks."""
        return self._lengths[-1] if self._lengths else 0

    def allocate(self, n_blocks: int, *, after: BlockId | None = None) -> list[Span]:
        """Take `n_blocks` free blocks, which become held, in as few runs as can be.

        Args:
            after: the block that the caller's last run ends with. Where the next blocks are free
                they come first, so that the run grows; then the tightest extent that holds the
                rest; then the longest ones.

        Raises:
            PoolExhaustedError: fewer are free. Nothing is taken.

        Cost: O(log n) per run, besides marking each block.
        """
        if n_blocks > self._free:
            raise PoolExhaustedError(n_blocks, self._free, self._held)
        taken = list(self._take(n_blocks, after))
        self._free -= n_blocks
        self._held += n_blocks
        return taken

    def free_held(self, spans: Iterable[Span]) -> None:
        """Give held blocks back. Raises BooksError when one of them is free already."""
        self._held -= self._give_back_all(spans)

    def free_cached(self, spans: Iterable[Span]) -> None:
        """Give cached blocks back. Raises BooksError when one of them is free already."""
        self._cached -= self._give_back_all(spans)

    def pin(self, n_blocks: int) -> None:
        """Count `n_blocks` cached blocks as held: a first request uses them."""
        self._cached -= n_blocks
        self._held += n_blocks

    def unpin(self, n_blocks: int) -> None:
        """Count `n_blocks` held blocks as cached: the last request has let them go."""
        self._held -= n_blocks
        self._cached += n_blocks

    def free_spans(self) -> list[Span]:
        """Return every free extent by position. Cost: sorts them; for checks and reports."""
        return [Span(BlockId(first), n) for first, n in sorted(self._length_from.items())]

    def check(self) -> None:
        """Prove that extents, marks and counts agree. Raises BooksError."""
        counts = (self._free, self._cached, self._held)
        if min(counts) < 0 or sum(counts) != self.n_blocks:
            raise BooksError(f"free, cached, held = {counts} of {self.n_blocks} blocks")
        marks = bytearray(self.n_blocks)
        for first, length in self._length_from.items():
            marks[first : first + length] = b"\x01" * length
            if self._first_until.get(first + length) != first:
                raise BooksError(f"extent {first}+{length} is not known by its end")
        if marks != self._is_free or sum(marks) != self._free:
            raise BooksError(f"{sum(marks)} blocks in extents, {self._free} counted free")
        by_length = {(n, first) for n, firsts in self._firsts_of.items() for first in firsts}
        if by_length != {(n, first) for first, n in self._length_from.items()}:
            raise BooksError("extents by length differ from extents by position")
        if self._lengths != sorted(self._firsts_of):
            raise BooksError(f"lengths {self._lengths} differ from {sorted(self._firsts_of)}")

    def _take(self, n_blocks: int, after: BlockId | None) -> Iterator[Span]:
        left = n_blocks
        if left and after is not None and after + 1 in self._length_from:
            span = self._take_from(after + 1, left)
            left -= span.n_blocks
            yield span
        while left:
            span = self._take_from(self._best_fit(left), left)
            left -= span.n_blocks
            yield span

    def _best_fit(self, n_blocks: int) -> int:
        at = bisect_left(self._lengths, n_blocks)
        length = self._lengths[at] if at < len(self._lengths) else self._lengths[-1]
        firsts = self._firsts_of[length]
        first, _ = firsts.popitem()  # unlike a peek, costs the same however often it is done
        firsts[first] = None
        return first

    def _take_from(self, first: int, at_most: int) -> Span:
        length = self._length_from[first]
        n_taken = min(length, at_most)
        self._remove_extent(first, length)
        if n_taken < length:
            self._add_extent(first + n_taken, length - n_taken)
        self._is_free[first : first + n_taken] = bytes(n_taken)
        return Span(BlockId(first), n_taken)

    def _give_back_all(self, spans: Iterable[Span]) -> int:
        n_blocks = 0
        for span in spans:
            self._give_back(span)
            n_blocks += span.n_blocks
        return n_blocks

    def _give_back(self, span: Span) -> None:
        first, length = int(span.first), span.n_blocks
        until = first + length
        if first < 0 or length < 1 or until > self.n_blocks:
            raise BooksError(f"blocks {first}+{length} are not in a pool of {self.n_blocks}")
        freed_before = self._is_free.find(1, first, until)
        if freed_before >= 0:
            raise BooksError(f"block {freed_before} of {first}+{length} is freed a second time")
        self._is_free[first:until] = b"\x01" * length
        self._free += length
        if until in self._length_from:
            length += self._remove_extent(until, self._length_from[until])
        if first in self._first_until:
            before = self._first_until[first]
            length += self._remove_extent(before, first - before)
            first = before
        self._add_extent(first, length)

    def _add_extent(self, first: int, length: int) -> None:
        self._length_from[first] = length
        self._first_until[first + length] = first
        if length not in self._firsts_of:
            self._firsts_of[length] = {}
            insort(self._lengths, length)
        self._firsts_of[length][first] = None

    def _remove_extent(self, first: int, length: int) -> int:
        del self._length_from[first], self._first_until[first + length]
        firsts = self._firsts_of[length]
        del firsts[first]
        if not firsts:
            del self._firsts_of[length]
            del self._lengths[bisect_left(self._lengths, length)]
        return length
