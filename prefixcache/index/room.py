"""Room for requests: what can be had, and in which order it is taken."""

from __future__ import annotations

from prefixcache.errors import PoolExhaustedError
from prefixcache.index.groups import GroupPools
from prefixcache.index.keeper import Keeper
from prefixcache.index.lease import Lease, LeaseBook
from prefixcache.index.spans import join_groups


class Room:
    """Gives blocks to leases: free ones first, then what `Keeper.evict` gives up, then slack."""

    def __init__(self, pools: GroupPools, keeper: Keeper, leases: LeaseBook) -> None:
        self._pools = pools
        self._keeper = keeper
        self._leases = leases

    @property
    def n_obtainable(self) -> int:
        """Positions that can be had if every unpinned node and all slack goes."""
        return self._pools.n_obtainable + self._leases.n_slack

    def require(self, n_blocks: int, n_obtainable: int) -> None:
        """Raise PoolExhaustedError if `n_blocks` is more than `n_obtainable`."""
        if n_blocks > n_obtainable:
            raise PoolExhaustedError(n_blocks, n_obtainable, self._pools.n_held)

    def take(self, lease: Lease, n_blocks: int) -> None:
        """Give `lease`, which has no slack, `n_blocks` more; they are known to be obtainable.

        Cost: O(log n) per run, per node given up and per lease that gives slack.
        """
        short = n_blocks - self._pools.n_free
        if short > 0:
            short -= self._keeper.evict(short)
            for slack in self._leases.take_slack(short):
                self._pools.free_held(slack)
        taken = self._pools.allocate(n_blocks, after=lease.runs)
        lease.runs = join_groups(lease.runs, taken)
        n_total = lease.n_blocks + n_blocks
        self._leases.resize(lease, n_blocks=n_total, n_needed=n_total)
