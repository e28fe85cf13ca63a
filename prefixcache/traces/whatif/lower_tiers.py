"""Tiers below the device: what leaves it is kept in one of them, and comes back from there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping

from prefixcache.errors import ConfigError
from prefixcache.index import BlockEvent, Lease, PrefixCache


class LowerTiers:
    """Keeps copies of blocks: the latest made or used in the first tier, older ones further down.

    What comes back to the device keeps its copy, so leaving again costs nothing. A piece larger
    than a tier goes to the next one, or is not kept. While a request makes room there may be more
    in a tier than its capacity; `trim` ends that.
    """

    def __init__(self, capacities: Mapping[str, int | None]) -> None:
        """`capacities`: blocks of each tier by its name, the fastest first; None: no limit."""
        self._tiers = [_Tier(name, n_blocks) for name, n_blocks in capacities.items()]
        self._n_made = 0

    def extras(self) -> dict[str, object]:
        """Return what each tier is, and how many blocks were hit in it."""
        return {
            f"{tier.name}_{what}": n_blocks
            for tier in self._tiers
            for what, n_blocks in (
                ("capacity_blocks", tier.capacity_blocks),
                ("hit_blocks", tier.hit_blocks),
            )
        }

    def n_blocks(self) -> list[int]:
        """Return the blocks that each tier keeps."""
        return [tier.n_blocks for tier in self._tiers]

    def demote(self, event: BlockEvent) -> Hashable | None:
        """Keep a copy of these blocks; None where they are too many."""
        self._n_made += 1
        return self._n_made if self._put(0, self._n_made, event.n_blocks) else None

    def forget(self, handle: Hashable) -> None:
        """Drop a copy that nothing names any more."""
        assert isinstance(handle, int)
        for tier in self._tiers:
            tier.take(handle)

    def trim(self, cache: PrefixCache) -> None:
        """Move copies down until they fit, and give up those that fit nowhere."""
        for place, tier in enumerate(self._tiers):
            while not tier.may_keep(tier.n_blocks):
                oldest = next(iter(tier.copies))
                if not self._put(place + 1, oldest, tier.take(oldest)):
                    cache.copies.forget(oldest)

    def n_found(self, cache: PrefixCache, lease: Lease, prompt: bytes) -> int:
        """Return how many blocks after the device's hit are here, and note that they were used."""
        parts = cache.copies.away(lease, prompt)
        for part in parts:
            assert isinstance(part.handle, int)
            for tier in self._tiers:
                if n_blocks := tier.take(part.handle):
                    tier.hit_blocks += part.n_blocks
                    self._put(0, part.handle, n_blocks)
                    break
        return sum(part.n_blocks for part in parts)

    def _put(self, first: int, handle: int, n_blocks: int) -> bool:
        """Put a copy into a tier from place `first` on that is large enough; False: none is."""
        for tier in self._tiers[first:]:
            if tier.may_keep(n_blocks):
                tier.copies[handle] = n_blocks
                tier.n_blocks += n_blocks
                return True
        return False


class _Tier:
    """One tier: blocks by handle, what was used last in the end."""

    def __init__(self, name: str, capacity_blocks: int | None) -> None:
        if capacity_blocks is not None and capacity_blocks < 1:
            raise ConfigError(f"{name}_capacity", capacity_blocks, "must be at least 1 block")
        self.name = name
        self.capacity_blocks = capacity_blocks
        self.copies: OrderedDict[int, int] = OrderedDict()
        self.n_blocks = 0
        self.hit_blocks = 0

    def may_keep(self, n_blocks: int) -> bool:
        """Return whether so many blocks are no more than it has room for when it is empty."""
        return self.capacity_blocks is None or n_blocks <= self.capacity_blocks

    def take(self, handle: int) -> int:
        """Take a copy out and return its blocks; 0: it is not here."""
        n_blocks = self.copies.pop(handle, 0)
        self.n_blocks -= n_blocks
        return n_blocks
