"""What can be read of a cache while it works."""

from __future__ import annotations

from collections import defaultdict

from prefixcache.index.accounts import Account
from prefixcache.index.core import Core
from prefixcache.index.groups import GroupPools
from prefixcache.index.misses import Tally
from prefixcache.index.nodes import Root
from prefixcache.index.snapshot import Snapshot, snapshot_of
from prefixcache.index.stats import CacheStats, NamespaceStats, TenantStats, sum_of
from prefixcache.index.windows import Windows
from prefixcache.types import PoolCounts


class Report:
    """Reads counters, gauges and trees. Costs, and which threads may call: as in `PrefixCache`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._accounts, self._forest, self._keeper = core.accounts, core.forest, core.keeper
        self._block_tokens = core.block.n_tokens

    def counts(self, group: int) -> PoolCounts:
        """Return the blocks of one layer group by state."""
        kind, index = self._place(group)
        return kind.counts(index)

    def longest_free_run(self, group: int) -> int:
        """Return the most consecutive free blocks of one layer group."""
        kind, index = self._place(group)
        return kind.pools[index].longest_free_run

    def stats(self, double_releases: int) -> CacheStats:
        """Add up all accounts and trees."""
        return CacheStats(
            lookups=sum_of(
                [
                    *(account.tally for account in self._accounts),
                    *(root.tally for root in self._forest if isinstance(root, Root)),
                ]
            ),
            evicted_blocks=self._keeper.evicted_blocks,
            reclaimed_blocks=self._keeper.reclaimed_blocks,
            double_releases=double_releases,
        )

    def tenant(self, tenant: str) -> TenantStats:
        """Return an account's numbers."""
        account = self._accounts.find(tenant)
        roots = (root for root in self._forest if isinstance(root, Root))
        return _stats(account, [root.tally for root in roots if root.account is account])

    def tenants(self) -> list[TenantStats]:
        """Return the numbers of all accounts."""
        tallies: defaultdict[Account, list[Tally]] = defaultdict(list)
        for root in self._forest:
            if isinstance(root, Root):
                tallies[root.account].append(root.tally)
        return [_stats(account, tallies[account]) for account in self._accounts]

    def namespaces(self) -> list[NamespaceStats]:
        """Return the numbers of every current tree."""
        return [
            NamespaceStats(namespace=root.namespace, lookups=sum_of([root.tally]))
            for root in self._forest
            if isinstance(root, Root) and self._forest.is_current(root)
        ]

    def snapshot(self, max_nodes: int, tenant: str | None, now: float) -> Snapshot:
        """Return the first nodes of every tree, or of one tenant's."""
        return snapshot_of(
            self._forest,
            max_nodes=max_nodes,
            tenant=tenant,
            now=now,
            block_tokens=self._block_tokens,
        )

    def _place(self, group: int) -> tuple[GroupPools | Windows, int]:
        """Return where the counts of a layer group are kept, and at which index."""
        is_window, index = self._core.places[group]
        return self._core.windows if is_window else self._core.pools, index


def _stats(account: Account, own: list[Tally]) -> TenantStats:
    """Return an account's numbers; `own`: the counters of the trees that it has now."""
    return TenantStats(
        tenant=account.tenant,
        cached_blocks=account.n_cached,
        held_blocks=account.n_held,
        retained_blocks=account.n_kept,
        reserved_blocks=account.reserved_blocks,
        max_blocks=account.max_blocks,
        lookups=sum_of([account.tally, *own]),
        evicted_blocks=account.evicted_blocks,
    )
