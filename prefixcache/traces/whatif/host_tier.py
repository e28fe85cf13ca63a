"""A second tier: what leaves the device is kept in host memory, and comes back from there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from prefixcache.errors import ConfigError
from prefixcache.index import BlockEvent, Lease, PrefixCache


class HostTier:
    """Keeps copies of blocks, and gives up those that were neither made nor used for longest.

    What comes back to the device keeps its copy, so leaving again costs nothing. A piece larger
    than the tier is not kept. While a request makes room there may be more than `capacity_blocks`;
    `trim` ends that.
    """

    def __init__(self, capacity_blocks: int) -> None:
        if capacity_blocks < 1:
            raise ConfigError("host_capacity", capacity_blocks, "must be at least 1 block")
        self.capacity_blocks = capacity_blocks
        self._copies: OrderedDict[int, int] = OrderedDict()  # blocks by handle, oldest first
        self._n_blocks = 0
        self._n_made = 0

    @property
    def n_blocks(self) -> int:
        """Blocks that are kept."""
        return self._n_blocks

    def demote(self, event: BlockEvent) -> Hashable | None:
        """Keep a copy of these blocks; None where they are too many."""
        if event.n_blocks > self.capacity_blocks:
            return None
        self._n_made += 1
        self._copies[self._n_made] = event.n_blocks
        self._n_blocks += event.n_blocks
        return self._n_made

    def forget(self, handle: Hashable) -> None:
        """Drop a copy that nothing names any more."""
        assert isinstance(handle, int)
        self._n_blocks -= self._copies.pop(handle, 0)

    def trim(self, cache: PrefixCache) -> None:
        """Give up copies until they fit."""
        while self._n_blocks > self.capacity_blocks:
            oldest = next(iter(self._copies))
            cache.copies.forget(oldest)
            self.forget(oldest)

    def n_found(self, cache: PrefixCache, lease: Lease, prompt: bytes) -> int:
        """Return how many blocks after the device's hit are here, and note that they were used."""
        parts = cache.copies.away(lease, prompt)
        for part in parts:
            assert isinstance(part.handle, int)
            self._copies.move_to_end(part.handle)
        return sum(part.n_blocks for part in parts)
