"""The pools of all layer groups together, and how much of them is cached and held."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache.errors import ConfigError, PoolExhaustedError
from prefixcache.index.blocks import BlockPool
from prefixcache.index.spans import GroupRuns
from prefixcache.types import PoolCounts


class GroupPools:
    """One block pool per layer group. Every count here is of positions in blocks.

    Each position has a block in every group, so what is cached and what is held is counted once:
    a block is free, held (some running request's) or cached (the tree's alone).
    """

    def __init__(self, pool_blocks: Sequence[int]) -> None:
        if not pool_blocks:
            raise ConfigError("pool_blocks", pool_blocks, "one layer group must have no window")
        self.pools = tuple(BlockPool(n_blocks) for n_blocks in pool_blocks)
        self.n_blocks = min(pool_blocks)  # the most that one request can have
        self.no_runs: GroupRuns = ((),) * len(self.pools)
        self.n_cached = 0
        self.smallest = min(self.pools, key=lambda pool: pool.n_blocks)

    @property
    def n_free(self) -> int:
        """Positions for which every group has a free block."""
        return self.smallest.n_free

    @property
    def n_held(self) -> int:
        """Positions that running requests hold: all that are neither free nor cached."""
        return self.smallest.n_blocks - self.smallest.n_free - self.n_cached

    @property
    def n_obtainable(self) -> int:
        """Positions for which every group has a block that is free or only cached."""
        return self.smallest.n_free + self.n_cached

    def counts(self, group: int) -> PoolCounts:
        """Return one group's blocks by state."""
        free = self.pools[group].n_free
        return PoolCounts(free=free, cached=self.n_cached, held=self.n_held)

    def allocate(self, n_blocks: int, after: GroupRuns) -> GroupRuns:
        """Take `n_blocks` blocks of each group, going on where the runs of `after` end.

        Raises:
            PoolExhaustedError: some group has fewer free. Nothing is taken.
        """
        if n_blocks > self.smallest.n_free:
            raise PoolExhaustedError(n_blocks, self.n_free, self.n_held)
        if len(self.pools) == 1:
            return (self.pools[0].allocate(n_blocks, after[0]),)
        pairs = zip(self.pools, after, strict=True)
        return tuple([pool.allocate(n_blocks, runs) for pool, runs in pairs])

    def free(self, groups: GroupRuns) -> None:
        """Give blocks back, in each group. Who had them counts them off."""
        if len(groups) == 1:
            free = self.pools[0].free
            for span in groups[0]:
                free(span)
            return
        for pool, runs in zip(self.pools, groups, strict=True):
            for span in runs:
                pool.free(span)
