"""The best that any policy could do at a capacity, by knowing what comes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from prefixcache.errors import ConfigError
from prefixcache.traces.prefixes import Prefixes
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.sums import Simulation, Sums

_IN_USE = -1  # as a next use: of the running request, sooner than any other


def optimum(
    requests: Iterable[TraceRequest],
    *,
    capacity_blocks: int | None,
    running_takes_room: bool = False,
) -> Simulation:
    """Return the most hit blocks that a cache of `capacity_blocks` blocks can have.

    What is used again last is given up first (Belady's rule). A prefix is used whenever anything
    behind it is, so the choice falls on the ends of prompts first, as in a tree of prefixes.

    Args:
        capacity_blocks: None: no limit.
        running_takes_room: all blocks of a prompt need room while its request runs, as in
            `simulate`: no policy of this product can have more hits than that. False: the room is
            the cache's alone, so that a block which is not worth it is never stored: the bound
            for whatever cache.

    Raises:
        ConfigError: the capacity is below 1.

    Cost: the trace in memory, O(log n) a block.
    Source: Belady: A study of replacement algorithms for a virtual-storage computer (1966).
        Why it holds for prefixes and whole prompts: prefixcache/design/0020-replay-methods.md.
    """
    if capacity_blocks is not None and capacity_blocks < 1:
        raise ConfigError("capacity_blocks", capacity_blocks, "must be at least 1")
    requests = list(requests)
    prefixes = Prefixes()
    paths = [prefixes.path(request.hash_ids[:capacity_blocks]) for request in requests]
    room = _Room(len(prefixes) if capacity_blocks is None else capacity_blocks)
    sums = Sums()
    for request, path, uses in zip(requests, paths, _next_uses(paths), strict=True):
        sums.add(request, room.n_leading(path))
        if running_takes_room:
            room.hold(path)
        room.keep(path, uses)
    return sums.result()


def _next_uses(paths: Sequence[Sequence[int]]) -> list[list[int | None]]:
    """Return, for each block of each path, the index of the next path that has it."""
    following: dict[int, int] = {}
    uses: list[list[int | None]] = []
    for index in range(len(paths) - 1, -1, -1):
        path = paths[index]
        uses.append(list(map(following.get, path)))
        following.update(dict.fromkeys(path, index))
    uses.reverse()
    return uses


class _Room:
    """The blocks that a clairvoyant keeps, by next use."""

    def __init__(self, n_blocks: int) -> None:
        self._n_blocks = n_blocks
        self._next_use: dict[int, int] = {}  # of each block that is kept
        self._latest: list[tuple[int, int, int]] = []  # negated next use and depth, block: a heap

    def n_leading(self, path: Sequence[int]) -> int:
        """Return how many leading blocks of `path` are kept."""
        for depth, block in enumerate(path):
            if block not in self._next_use:
                return depth
        return len(path)

    def hold(self, path: Sequence[int]) -> None:
        """Make room for all of `path` at once."""
        self._next_use.update(dict.fromkeys(path, _IN_USE))
        self._give_up()

    def keep(self, path: Sequence[int], uses: Sequence[int | None]) -> None:
        """End the use of `path`: forget what never comes back, and keep the rest if it is worth it.

        A block has slots in the heap for uses that are over. They are never taken for it, for its
        next use is another one now.
        """
        for depth, (block, use) in enumerate(zip(path, uses, strict=True)):
            if use is None:
                self._next_use.pop(block, None)
            else:
                self._next_use[block] = use
                heappush(self._latest, (-use, -depth, block))
        self._give_up()

    def _give_up(self) -> None:
        next_use = self._next_use
        while len(next_use) > self._n_blocks:
            use, _, block = heappop(self._latest)
            if next_use.get(block) == -use:
                del next_use[block]
