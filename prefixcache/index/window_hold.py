"""What a running request holds of the window groups."""

from __future__ import annotations

from prefixcache.index.spans import Runs, n_blocks_in


class WindowPart:
    """What a lease holds in one window group: its own blocks, and the tree's that it can see."""

    __slots__ = ("first_seen", "runs", "start")

    def __init__(self, n_stored: int) -> None:
        self.first_seen = n_stored  # in blocks: it holds no tree's blocks before
        self.start = n_stored  # where its own begin
        self.runs: Runs = ()

    @property
    def end(self) -> int:
        """The block after its last one."""
        return self.start + n_blocks_in(self.runs)


class WindowHold:
    """What a lease holds in the window groups."""

    __slots__ = ("parts",)

    def __init__(self, n_groups: int, n_stored: int) -> None:
        self.parts = tuple([WindowPart(n_stored) for _ in range(n_groups)])


Users = tuple[WindowPart, ...]  # who sees some of a node's blocks in one group
