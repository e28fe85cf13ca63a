"""The pools of all layer groups, moved in lockstep: each position has one block in each."""

from __future__ import annotations

from collections.abc import Sequence

from prefixcache.errors import ConfigError, PoolExhaustedError
from prefixcache.index.blocks import BlockPool
from prefixcache.index.spans import GroupRuns, join, last_block


class GroupPools:
    """One block pool per layer group. Every count here is of positions in blocks."""

    def __init__(self, pool_blocks: Sequence[int]) -> None:
        if not pool_blocks:
            raise ConfigError("pool_blocks", pool_blocks, "needs one pool for each layer group")
        self.pools = tuple(BlockPool(n_blocks) for n_blocks in pool_blocks)
        self.n_blocks = min(pool_blocks)  # the most that one request can have
        self.no_runs: GroupRuns = ((),) * len(self.pools)

    @property
    def n_free(self) -> int:
        """Positions for which every group has a free block."""
        return min(pool.n_free for pool in self.pools)

    @property
    def n_obtainable(self) -> int:
        """Positions for which every group has a block that is free or only cached."""
        return min(pool.n_free + pool.n_cached for pool in self.pools)

    @property
    def n_held(self) -> int:
        """Blocks held in the group that has the least left."""
        tightest = min(self.pools, key=lambda pool: pool.n_free + pool.n_cached)
        return tightest.counts.held

    def allocate(self, n_blocks: int, *, after: GroupRuns) -> GroupRuns:
        """Take `n_blocks` blocks of each group, going on where the runs of `after` end.

        Raises:
            PoolExhaustedError: some group has fewer free. Nothing is taken.
        """
        if n_blocks > self.n_free:
            raise PoolExhaustedError(n_blocks, self.n_free, self.n_held)
        return tuple(
            join(tuple(pool.allocate(n_blocks, after=last_block(runs))))
            for pool, runs in zip(self.pools, after, strict=True)
        )

    def free_held(self, groups: GroupRuns) -> None:
        """Give held blocks back, in each group."""
        for pool, runs in zip(self.pools, groups, strict=True):
            pool.free_held(runs)

    def free_cached(self, groups: GroupRuns) -> None:
        """Give cached blocks back, in each group."""
        for pool, runs in zip(self.pools, groups, strict=True):
            pool.free_cached(runs)

    def pin(self, n_blocks: int) -> None:
        """Count cached blocks as held, in each group."""
        for pool in self.pools:
            pool.pin(n_blocks)

    def unpin(self, n_blocks: int) -> None:
        """Count held blocks as cached, in each group."""
        for pool in self.pools:
            pool.unpin(n_blocks)
