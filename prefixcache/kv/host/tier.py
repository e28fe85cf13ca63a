"""The index's lower tier, in host memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count

from prefixcache.index import BlockEvent
from prefixcache.index.spans import Runs
from prefixcache.kv.host.arena import HostArena, HostCopy


@dataclass(slots=True)
class HostCounters:
    """What the tier has done since it was made."""

    written_bytes: int = 0
    read_bytes: int = 0
    refused_blocks: int = 0  # there was no room for them


class HostTier:
    """Keeps copies of what leaves the device, those that were used last the longest.

    A copy is made while the index makes room, and the tier may not give up another one then. So
    whoever drives it has `make_room` keep some free, and asks for more before it asks the index.
    """

    def __init__(
        self, arena: HostArena, runs_of: Callable[[BlockEvent], list[Runs]], *, whole_group: int = 0
    ) -> None:
        """Make it.

        Args:
            runs_of: each layer group's blocks of an event, as far as it has them, the last ones.
            whole_group: a layer group that has all of them, if there is one.
        """
        self.arena = arena
        self.counters = HostCounters()
        self._runs_of = runs_of
        self._group = whole_group
        self._handles = count()
        self._copies: OrderedDict[int, HostCopy] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def n_blocks(self) -> int:
        """How many blocks there is room for."""
        return self.arena.n_blocks(self._group)

    def demote(self, event: BlockEvent) -> int | None:
        """Copy what the device gives up; None: there is no room for it."""
        copy = self.arena.put(event.n_blocks, self._runs_of(event))
        if copy is None:
            self.counters.refused_blocks += event.n_blocks
            return None
        handle = next(self._handles)
        self._copies[handle] = copy
        self.counters.written_bytes += self.arena.bytes_of(copy)
        return handle

    def forget(self, handle: Hashable) -> None:
        """Free a copy that the index names no more. Unknown handles are ignored."""
        copy = self._copies.pop(handle, None)  # type: ignore[call-overload]
        if copy is not None:
            self.arena.free(copy)

    def copy(self, handle: Hashable) -> HostCopy:
        """Return a copy that the index has named just now."""
        return self._copies[handle]  # type: ignore[index]

    def touch(self, handle: Hashable) -> None:
        """Keep a copy longer than all that were not used since. Unknown handles are ignored."""
        if handle in self._copies:
            self._copies.move_to_end(handle)  # type: ignore[arg-type]

    def make_room(self, n_blocks: int, lost: Callable[[Hashable], None]) -> None:
        """Have room for so many blocks, or as many as there are.

        Of a group that has but some of a path's blocks there is room for as many of those as the
        copies have that are there now.

        Args:
            lost: is told of each copy that is given up, and may `forget` others.
        """
        wanted = self._wanted(min(n_blocks, self.n_blocks))
        while self._copies and any(self.arena.n_free(group) < n for group, n in wanted):
            handle, copy = self._copies.popitem(last=False)
            self.arena.free(copy)
            lost(handle)

    def _wanted(self, n_blocks: int) -> list[tuple[int, int]]:
        """Return how many blocks of each group so many of a path take, if it is like the others."""
        arena, n_used = self.arena, max(self.n_blocks - self.arena.n_free(self._group), 1)
        shares = (arena.n_blocks(group) - arena.n_free(group) for group in range(arena.n_groups))
        wanted = {
            group: min(-(-n_blocks * n_here // n_used), arena.n_blocks(group))
            for group, n_here in enumerate(shares)
        }
        return list((wanted | {self._group: n_blocks}).items())
