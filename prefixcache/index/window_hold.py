"""What a running request holds of the window groups."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache.index.spans import Runs, cut, join, n_blocks_in


class Extent:
    """Consecutive blocks of a request's own, from some block of its prompt on."""

    __slots__ = ("runs", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.runs: Runs = ()

    @property
    def end(self) -> int:
        """The block after its last one."""
        return self.start + n_blocks_in(self.runs)

    def add(self, runs: Runs) -> None:
        """Have more blocks at the end."""
        self.runs = join(self.runs, runs)

    def take_until(self, end: int) -> Runs:
        """Give away the blocks before block `end`, and begin there or later."""
        taken, self.runs = cut(self.runs, max(end - self.start, 0))
        self.start = max(self.start, end)
        return taken


class WindowPart:
    """What a lease holds in one window group: its own blocks, and the tree's that it can see.

    The group's lead, the first blocks of a prompt, is seen by every token.
    """

    __slots__ = ("first_seen", "lead", "lead_end", "rest")

    def __init__(self, n_stored: int, lead_blocks: int) -> None:
        self.first_seen = n_stored  # in blocks: it holds no tree's blocks before, but the lead
        self.lead_end = lead_blocks
        self.lead = Extent(min(n_stored, lead_blocks))  # its own blocks of the lead
        self.rest = Extent(max(n_stored, lead_blocks))

    @property
    def end(self) -> int:
        """The block after its last one."""
        return self.lead.end if self.lead.end < self.lead_end else self.rest.end

    @property
    def n_own(self) -> int:
        """Blocks that are its own."""
        return n_blocks_in(self.lead.runs) + n_blocks_in(self.rest.runs)

    def take_until(self, end: int) -> Runs:
        """Give a node that ends at block `end` what there is of its last positions.

        No node lies on both sides of the lead's end.
        """
        return (self.lead if end <= self.lead_end else self.rest).take_until(end)

    def missing(self, end: int) -> tuple[int, int]:
        """Return how many blocks lack up to block `end`, in the lead and after it."""
        lead = min(end, self.lead_end) - self.lead.end
        return max(lead, 0), max(end - self.rest.end, 0)


class WindowHold:
    """What a lease holds in the window groups."""

    __slots__ = ("parts",)

    def __init__(self, lead_blocks: Sequence[int], n_stored: int) -> None:
        self.parts = tuple([WindowPart(n_stored, n_blocks) for n_blocks in lead_blocks])


Users = tuple[WindowPart, ...]  # who sees some of a node's blocks in one group
