"""Whose blocks are whose: tenants' quotas, and who gives first when room is short."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prefixcache.errors import ConfigError
from prefixcache.index.groups import GroupPools
from prefixcache.index.lazy_heap import LazyHeap
from prefixcache.index.misses import Tally
from prefixcache.index.policies import EvictionPolicy
from prefixcache.index.spans import GroupRuns

SYSTEM_TENANT = "(system)"  # owns the published prompts


@dataclass(frozen=True, slots=True)
class Quota:
    """How many blocks a tenant owns at least and at most, its cached and its running ones together.

    Counted in positions, each of which takes a block in every layer group without a window.
    """

    reserved_blocks: int = 0  # never given up, nor kept back by running requests, for others
    max_blocks: int | None = None  # None: the pool

    def __post_init__(self) -> None:
        if self.reserved_blocks < 0:
            raise ConfigError("reserved_blocks", self.reserved_blocks, "must be at least 0")
        if self.max_blocks is not None and self.max_blocks < max(self.reserved_blocks, 1):
            raise ConfigError("max_blocks", self.max_blocks, "must be at least the reserve, and 1")


@dataclass(frozen=True, slots=True)
class Shares:
    """Who may own and retain how much of a pool."""

    quotas: Mapping[str, Quota]  # by tenant
    published: Quota | None  # None: at most a quarter
    retained_blocks: int | None  # of each tenant; None: a quarter

    def __post_init__(self) -> None:
        if self.retained_blocks is not None and self.retained_blocks < 0:
            raise ConfigError("retained_blocks", self.retained_blocks, "must be at least 0")

    def published_of(self, n_blocks: int) -> Quota:
        """Return the published prompts' quota in a pool of `n_blocks` blocks."""
        return self.published or Quota(max_blocks=_quarter(n_blocks))

    def retained_of(self, n_blocks: int) -> int:
        """Return how many blocks a tenant may retain in a pool of `n_blocks` blocks."""
        return _quarter(n_blocks) if self.retained_blocks is None else self.retained_blocks


class Account:
    """What one tenant has: every change of its blocks goes through here to the pools.

    `n_slack` of the held blocks were taken for growth that nobody has asked for yet.
    """

    __slots__ = (
        "_pools",
        "_reserves",
        "evicted_blocks",
        "is_touched",
        "max_blocks",
        "n_cached",
        "n_held",
        "n_kept",
        "n_slack",
        "policy",
        "reserved_blocks",
        "tally",
        "tenant",
    )

    def __init__(
        self, tenant: str, pools: GroupPools, policy: EvictionPolicy, reserves: Reserves
    ) -> None:
        self.tenant = tenant
        self.policy = policy
        self._pools = pools
        self._reserves = reserves
        self.reserved_blocks = 0
        self.max_blocks = pools.n_blocks
        self.n_cached = self.n_held = self.n_slack = 0
        self.n_kept = 0  # of all these: blocks that a retention keeps
        self.is_touched = False  # has more to give than the order of givers knows
        self.tally = Tally()  # of its trees that are gone; the others have their own
        self.evicted_blocks = 0  # given up by its policy's choice

    @property
    def n_used(self) -> int:
        """Blocks it owns."""
        return self.n_cached + self.n_held

    @property
    def excess(self) -> int:
        """Blocks it owns beyond its reserve. All fair shares are a reserve and an equal part."""
        return self.n_cached + self.n_held - self.reserved_blocks

    @property
    def unused_reserve(self) -> int:
        """Blocks of its reserve that its requests have not asked for."""
        return max(self.reserved_blocks - self.n_held + self.n_slack, 0)

    @property
    def has_all_cached(self) -> bool:
        """Whether nobody else has any cached blocks."""
        return self.n_cached == self._pools.n_cached

    def set_quota(self, quota: Quota) -> None:
        """Change how much it may and will have."""
        self._reserves.n_reserved += quota.reserved_blocks - self.reserved_blocks
        self.reserved_blocks = quota.reserved_blocks
        most = self._pools.n_blocks
        self.max_blocks = most if quota.max_blocks is None else min(quota.max_blocks, most)
        self._reserves.changed[self] = None

    def pin(self, n_blocks: int) -> None:
        """Count cached blocks of its as held: a running request uses them now."""
        self.n_cached -= n_blocks
        self.n_held += n_blocks
        self._pools.n_cached -= n_blocks
        if self.reserved_blocks:
            self._reserves.changed[self] = None

    def unpin(self, n_blocks: int) -> None:
        """Count held blocks of its as cached: no running request uses them any more."""
        self.n_cached += n_blocks
        self.n_held -= n_blocks
        self._pools.n_cached += n_blocks
        if self.reserved_blocks:
            self._reserves.changed[self] = None

    def allocate(self, n_blocks: int, after: GroupRuns) -> GroupRuns:
        """Take free blocks, which become held, and go on where the runs of `after` end.

        Raises:
            PoolExhaustedError: some layer group has fewer free. Nothing is taken.
        """
        runs = self._pools.allocate(n_blocks, after)
        self.n_held += n_blocks
        if self.reserved_blocks:
            self._reserves.changed[self] = None
        return runs

    def free_held(self, runs: GroupRuns, n_blocks: int) -> None:
        """Give held blocks back."""
        self.n_held -= n_blocks
        self._pools.free(runs)
        if self.reserved_blocks:
            self._reserves.changed[self] = None

    def free_cached(self, runs: GroupRuns, n_blocks: int) -> None:
        """Give cached blocks back."""
        self.n_cached -= n_blocks
        self._pools.n_cached -= n_blocks
        self._pools.free(runs)

    def count_slack(self, change: int) -> None:
        """Note that `change` more of the held blocks are slack."""
        self._reserves.n_slack += change
        self.n_slack += change
        if self.reserved_blocks:
            self._reserves.changed[self] = None


class Reserves:
    """Sums over all accounts."""

    def __init__(self) -> None:
        self.n_reserved = 0
        self.n_slack = 0  # held blocks that no request has asked for
        self.changed: dict[Account, None] = {}  # whose unused reserve may be another now
        self._n_unused = 0
        self._counted: dict[Account, int] = {}  # what each one adds to that

    @property
    def n_unused(self) -> int:
        """Reserved blocks that no request has asked for. Cost: the accounts that changed."""
        for account in self.changed:
            unused = account.unused_reserve
            self._n_unused += unused - self._counted.get(account, 0)
            self._counted[account] = unused
        self.changed.clear()
        return self._n_unused


class Accounts:
    """Every tenant's account, and the order in which they give.

    All can keep what they have reserved at the same time, so a request may hold blocks only as far
    as the others' reserves stay obtainable: what is free, cached or slack less the unused part of
    those reserves. Others may keep cached prefixes there; they are given up when it is claimed.
    """

    def __init__(
        self,
        pools: GroupPools,
        make_policy: Callable[[], EvictionPolicy],
        quotas: Mapping[str, Quota],
    ) -> None:
        self._pools = pools
        self._make_policy = make_policy
        self._reserves = Reserves()
        self._accounts: dict[str, Account] = {}
        self._nobody = Account("", pools, make_policy(), self._reserves)
        self._givers = LazyHeap[int, Account]()  # by what was their excess, negated
        self._touched: list[Account] = []
        self._last_giver: Account | None = None
        self.n_kept = 0  # blocks that retentions keep, of all accounts
        self._defaults: dict[str, Quota] = {}  # of those whose default is another one
        for tenant, quota in quotas.items():
            self.set_quota(tenant, quota)

    def __iter__(self) -> Iterator[Account]:
        return iter(list(self._accounts.values()))  # a copy: also for other threads

    def of(self, tenant: str) -> Account:
        """Return the tenant's account; a tenant that was never seen gets one without a quota."""
        account = self._accounts.get(tenant)
        if account is None:
            policy = self._make_policy()
            account = Account(tenant, self._pools, policy, self._reserves)
            self._accounts[tenant] = account
        return account

    def find(self, tenant: str) -> Account:
        """Return the tenant's account, or that of one who has nothing. Changes nothing."""
        return self._accounts.get(tenant, self._nobody)

    def set_quota(self, tenant: str, quota: Quota) -> None:
        """Change a tenant's quota; what it has beyond its new maximum goes as it needs room.

        Raises:
            ConfigError: the reserves are more than the pool. Nothing changes.
        """
        account = self.of(tenant)
        others = self._reserves.n_reserved - account.reserved_blocks
        most = self._pools.n_blocks - others
        if quota.reserved_blocks > most:
            raise ConfigError(
                "reserved_blocks",
                quota.reserved_blocks,
                f"tenant {tenant!r} can reserve {most} of {self._pools.n_blocks} blocks at most,"
                f" for others have reserved {others}",
            )
        account.set_quota(quota)
        self.touch(account)

    def set_default(self, tenant: str, quota: Quota) -> None:
        """Say what a tenant has that is not named, other than all and no promise; set it so."""
        self._defaults[tenant] = quota
        self.set_quota(tenant, quota)

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Have these quotas, and the default for all others.

        Raises:
            ConfigError: the reserves are more than the pool. Nothing changes.
        """
        wanted = {**self._defaults, **quotas}
        n_reserved = sum(quota.reserved_blocks for quota in wanted.values())
        if n_reserved > self._pools.n_blocks:
            reason = f"the pool has {self._pools.n_blocks} blocks; reserve less"
            raise ConfigError("reserved_blocks of all tenants", n_reserved, reason)
        for tenant in wanted:
            self.of(tenant)
        for account in self:
            account.set_quota(wanted.get(account.tenant, Quota()))
            self.touch(account)

    @property
    def n_slack(self) -> int:
        """Held blocks of all tenants that nobody has asked for."""
        return self._reserves.n_slack

    @property
    def n_unused_reserve(self) -> int:
        """Reserved blocks of all tenants that no request has asked for."""
        return self._reserves.n_unused

    def n_obtainable(self, account: Account, own_path: int = 0, system_path: int = 0) -> int:
        """Return how many blocks the account's requests can have beyond what they asked for. O(1).

        Args:
            own_path, system_path: cached blocks, its own and published prompts', that are about
                to be pinned.
        """
        reserves = self._reserves
        shared = self._pools.n_obtainable + reserves.n_slack - own_path - system_path
        kept_for_others = reserves.n_unused - account.unused_reserve
        if system_path:
            kept_for_others -= min(system_path, self.of(SYSTEM_TENANT).unused_reserve)
        return min(shared - kept_for_others, self.n_left_of_quota(account, own_path))

    def n_left_of_quota(self, account: Account, own_path: int = 0) -> int:
        """Return how many blocks more the account's requests may have by its maximum. O(1)."""
        return account.max_blocks - account.n_held + account.n_slack - own_path

    def most_blocks(self, account: Account) -> int:
        """Return what one request of the account could have if nothing else ran. O(1)."""
        others = self._reserves.n_reserved - account.reserved_blocks
        return min(self._pools.n_blocks - others, account.max_blocks)

    def may_grow_ahead(self, account: Account, n_blocks: int) -> bool:
        """Return whether a request may take blocks that it does not need yet. O(1).

        Within its reserve always; else if it takes nobody's slack and nothing retained for it.
        """
        if n_blocks <= account.unused_reserve:
            return True
        spared = self._reserves.n_slack + self.n_kept
        return n_blocks <= self.n_obtainable(account) - spared

    def touch(self, account: Account) -> None:
        """Note that the account has more blocks, or more to give, than before."""
        if not account.is_touched:
            account.is_touched = True
            self._touched.append(account)

    def has_room(self, account: Account, n_blocks: int) -> bool:
        """Return whether so many are free and nobody's quota is in the way. O(1)."""
        return (
            n_blocks <= self._pools.smallest.n_free
            and not self._reserves.n_reserved
            and account.max_blocks == self._pools.n_blocks
        )

    def giver(self, now: float, asking: Account | None) -> Account | None:
        """Return the account whose policy is to choose the next victim, None when there is none.

        That is the one furthest over its fair share which has a victim. Those within their
        reserve do not give to others; `asking` gives whatever it has, and None asks for all.
        Cost: O(log tenants), amortised.
        """
        sole = self._last_giver if asking is None else asking
        if sole is not None and sole.n_cached == self._pools.n_cached:
            return sole  # nobody else has anything
        account = self._furthest(now)
        self._last_giver = account
        if account is None or (asking is not None and account.excess <= 0):
            return asking
        return account

    def _furthest(self, now: float) -> Account | None:
        for account in self._touched:
            account.is_touched = False
            self._givers.push(account, -account.excess)
        self._touched.clear()
        while (first := self._givers.first()) is not None:
            known, account = first
            if account.policy.victim(now) is None:
                self._givers.discard(account)
            elif -known != account.excess:
                self._givers.push(account, -account.excess)
            else:
                return account
        return None


def _quarter(n_blocks: int) -> int:
    return max(n_blocks // 4, 1)
