"""What a running request holds of the window groups."""

from __future__ import annotations

from prefixcache.index.spans import Runs, n_blocks_in


class WindowPart:
    """A lease's own blocks in one window group: those of positions from block `start` on."""

    __slots__ = ("runs", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.runs: Runs = ()

    @property
    def end(self) -> int:
        """The block after its last one."""
        return self.start + n_blocks_in(self.runs)


class WindowHold:
    """What a lease holds in the window groups: its own blocks, and the tree's that it can see."""

    __slots__ = ("first_seen", "parts")

    def __init__(self, n_groups: int, n_stored: int) -> None:
        self.first_seen = n_stored  # in blocks: it holds no tree's blocks before
        self.parts = tuple(WindowPart(n_stored) for _ in range(n_groups))
