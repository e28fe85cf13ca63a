"""A stand-in for the KV store: it knows of each position what it was computed from.

The KV of a position depends on every token before it. So an entry is the namespace with its
generations and all ids up to there, and a hit is right only if the whole entry is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prefixcache.index import BlockCopy, BlockExchange, Generations, Lease, Namespace
from prefixcache.types import BlockId, Span

Entry = tuple[Namespace, Generations, tuple[int, ...]]


class FakeKV:
    """Entries by layer group, block and offset."""

    def __init__(
        self,
        block_size_tokens: int,
        n_groups: int,
        windows: Sequence[int] = (),
        leads: Sequence[int] = (),
    ) -> None:
        """Make an empty store.

        Args:
            windows: those of the groups after the first `n_groups`.
            leads: how many first tokens each of these keeps.
        """
        self.leads = leads or [0] * len(windows)
        self.block_size_tokens = block_size_tokens
        self.n_groups = n_groups
        self.windows = windows
        self.copies = 0
        self._entries: dict[tuple[int, int, int], Entry] = {}

    def copy_block(self, copy: BlockCopy) -> None:
        """Do what the cache orders."""
        assert 0 < copy.n_tokens < self.block_size_tokens
        assert copy.source != copy.target
        self.copies += 1
        for offset in range(copy.n_tokens):
            entry = self._entries[copy.group, copy.source, offset]
            self._entries[copy.group, copy.target, offset] = entry

    def exchange(self, order: BlockExchange) -> None:
        """Do what compaction orders. What was in a place that has become free is lost."""
        for index in range(order.n_blocks):
            for offset in range(self.block_size_tokens):
                source = order.group, order.source + index, offset
                target = order.group, order.target + index, offset
                here, there = self._entries.pop(source, None), self._entries.pop(target, None)
                if here is not None:
                    self._entries[target] = here
                if there is not None and not order.is_copy:
                    self._entries[source] = there

    def write(self, lease: Lease, ids: Sequence[int], start: int) -> None:
        """Compute positions from `start` to the end of `ids`."""
        for position in range(start, len(ids)):
            for place in self._places(lease, position, position):
                self._entries[place] = _entry(lease, ids, position)

    def assert_holds(self, lease: Lease, ids: Sequence[int], shared: Entry | None = None) -> None:
        """Fail unless the lease can read the right KV for every position of `ids`.

        Args:
            shared: what it may read as well: whose, made under what, and which ids. None: nothing.
        """
        for position in range(len(ids)):
            right = [_entry(lease, ids, position)]
            if shared is not None and position < len(shared[2]):
                right.append((shared[0], shared[1], tuple(ids[: position + 1])))
            for place in self._places(lease, position, len(ids)):
                assert self._entries.get(place) in right

    def read(self, group: int, block: BlockId) -> list[Entry | None]:
        """Return what is in a block."""
        offsets = range(self.block_size_tokens)
        return [self._entries.get((group, block, offset)) for offset in offsets]

    def _places(self, lease: Lease, position: int, reader: int) -> Iterator[tuple[int, int, int]]:
        """Yield where the KV of `position` is, as far as the token at `reader` sees it."""
        block_index, offset = divmod(position, self.block_size_tokens)
        for group in range(self.n_groups):
            yield group, blocks_of(lease, group)[block_index], offset
        for group, window in enumerate(self.windows, self.n_groups):
            if position > reader - window or position < self.leads[group - self.n_groups]:
                yield group, block_at(lease, group, block_index), offset


def block_at(lease: Lease, group: int, block_index: int) -> BlockId:
    """Return the lease's block at an index of its prompt, which it must hold."""
    lead = _one_by_one(lease.lead_spans(group))
    if block_index < len(lead):
        return lead[block_index]
    index = block_index - lease.first_block(group)
    assert index >= 0
    return blocks_of(lease, group)[index]


def blocks_of(lease: Lease, group: int = 0) -> list[BlockId]:
    """Return the lease's blocks one by one."""
    return _one_by_one(lease.spans(group))


def _one_by_one(spans: Sequence[Span]) -> list[BlockId]:
    return [BlockId(block) for first, n_blocks in spans for block in range(first, first + n_blocks)]


def _entry(lease: Lease, ids: Sequence[int], position: int) -> Entry:
    return lease.namespace, lease.generations, tuple(ids[: position + 1])
