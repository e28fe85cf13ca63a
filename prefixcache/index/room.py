"""Room for requests: what can be had, and in which order it is taken."""

from __future__ import annotations

from prefixcache.errors import PoolExhaustedError
from prefixcache.index.accounts import Account, Accounts
from prefixcache.index.groups import GroupPools
from prefixcache.index.hooks import Hooks
from prefixcache.index.keeper import Keeper
from prefixcache.index.lease import Lease, LeaseBook
from prefixcache.index.retention import Retentions
from prefixcache.index.spans import join_groups


class Room:
    """Gives blocks to leases.

    First free ones, then what was invalidated, then what the policies of those choose who are
    furthest over their fair share, then growth slack, and retained prefixes last of all.
    """

    def __init__(
        self,
        pools: GroupPools,
        accounts: Accounts,
        keeper: Keeper,
        leases: LeaseBook,
        retentions: Retentions,
        hooks: Hooks,
    ) -> None:
        self._pools = pools
        self._accounts = accounts
        self._keeper = keeper
        self._leases = leases
        self._retentions = retentions
        self._hooks = hooks

    def require(
        self, account: Account, n_blocks: int, own_path: int = 0, system_path: int = 0
    ) -> None:
        """Raise PoolExhaustedError if the account's requests cannot have `n_blocks` more.

        Args:
            own_path, system_path: as in `Accounts.n_obtainable`.
        """
        most = self._accounts.n_obtainable(account, own_path, system_path)
        if n_blocks > most:
            by_quota = n_blocks > self._accounts.n_left_of_quota(account, own_path)
            by_quota &= account.max_blocks < self._pools.n_blocks  # else the pool is full
            raise PoolExhaustedError(n_blocks, max(most, 0), self._pools.n_held, by_quota)

    def take(self, lease: Lease, n_blocks: int, now: float) -> None:
        """Give `lease`, which has no slack, `n_blocks` more; they are known to be obtainable.

        Cost: O(log n) per run, per node given up and per lease that gives slack.
        """
        if self._hooks.is_running:
            self._hooks.refuse()
        account = lease.account
        if account.max_blocks < self._pools.n_blocks:
            self._make_own_room(account, n_blocks, now)
        short = n_blocks - self._pools.n_free
        if short > 0:
            self.make(short, now, asking=account, n_asked=n_blocks)
        self.give(lease, n_blocks)

    def give(self, lease: Lease, n_blocks: int) -> None:
        """Give `lease`, which has no slack, blocks that are free."""
        own, account = lease.own, lease.account
        if lease.n_blocks > lease.n_stored:
            lease.own = join_groups(own, account.allocate(n_blocks, own))
        else:
            lease.own = account.allocate(n_blocks, lease.node.runs)
        if not account.is_touched:
            self._accounts.touch(account)
        lease.n_needed = lease.n_blocks = lease.n_blocks + n_blocks

    def make(self, n_blocks: int, now: float, *, asking: Account | None, n_asked: int = 0) -> int:
        """Free at most `n_blocks` blocks and return how many were freed.

        Args:
            asking: whose request needs them; None: they are wanted free, and no reserve is spared.
            n_asked: how many its request takes in all. What it has and takes within its reserve
                is at nobody's cost but the others', their retained prefixes included.
        """
        if self._hooks.is_running:
            self._hooks.refuse()
        if self._retentions.next_end <= now:
            self._retentions.expire(now)
        freed = self._evict(n_blocks, now, asking, n_asked)
        if freed < n_blocks and asking is not None:
            freed += self._take_slack(None, n_blocks - freed)
            freed += self._take_slack(asking, n_blocks - freed)
        spares = asking is not None
        while freed < n_blocks and self._retentions.give_way(None, now, spare_reserves=spares):
            freed += self._evict(n_blocks - freed, now, asking, n_asked)
        while asking is not None and freed < n_blocks:
            more = self._keeper.evict(n_blocks - freed, now, asking=asking, most_own=n_blocks)
            if not more and not self._retentions.give_way(asking, now):
                break
            freed += more
        return freed

    def _evict(self, n_blocks: int, now: float, asking: Account | None, n_asked: int) -> int:
        most_own = 0 if asking is None else asking.excess + n_asked
        return self._keeper.evict(n_blocks, now, asking=asking, most_own=most_own)

    def _make_own_room(self, account: Account, n_blocks: int, now: float) -> None:
        """Have `account` give up of its own what keeps it from having `n_blocks` more."""
        most = account.max_blocks - n_blocks
        while (over := account.n_used - most) > 0:
            gave = (
                self._keeper.reclaim(over)
                or self._keeper.evict_from(account, over, now)
                or self._take_slack(account, over)
                or self._retentions.give_way(account, now)
            )
            assert gave, "what was found obtainable is there"

    def _take_slack(self, account: Account | None, n_blocks: int) -> int:
        left = n_blocks
        for lease in self._leases.with_slack(account):
            most = min(left, lease.n_slack)
            if account is None:
                most = min(most, lease.account.excess)
            if most <= 0:
                continue
            lease.account.free_held(self._leases.take_slack(lease, most), most)
            left -= most
        return n_blocks - left
