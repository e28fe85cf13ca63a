"""Who may have how many blocks, from the numbers that a cache shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from prefixcache.index import SYSTEM_TENANT, Lease, PrefixCache, TreeView
from prefixcache.types import PoolCounts

TENANTS = ("t", "u", "v", SYSTEM_TENANT)


@dataclass(frozen=True)
class Outlook:
    """What is known of a request before it is admitted."""

    is_too_large: bool
    may_fit: bool  # if all that it matches is held already
    surely_fits: bool  # though nothing of that is
    takes_no_retained: bool  # what is free or cached by traffic is enough


class Room:
    """All can have their reserves at the same time, and nobody more than its maximum."""

    def __init__(self, cache: PrefixCache, pools: Sequence[int], block_tokens: int) -> None:
        self._cache, self._block_tokens = cache, block_tokens
        self._pool_blocks = min(pools)
        self._smallest = pools.index(self._pool_blocks)

    @property
    def n_held(self) -> int:
        """Blocks of running requests."""
        return self._cache.counts().held

    def state(self) -> tuple[PoolCounts, list[tuple[int, int]]]:
        """Return every count."""
        stats = [self._cache.tenant_stats(tenant) for tenant in TENANTS]
        return self._cache.counts(), [(s.cached_blocks, s.held_blocks) for s in stats]

    def trees(self) -> list[TreeView]:
        """Return every tree."""
        snapshot = self._cache.snapshot(max_nodes=100_000)
        assert snapshot.is_complete
        return snapshot.trees

    def is_too_large(self, tenant: str, length: int) -> bool:
        """Return whether a request could not even run alone."""
        stats = [self._cache.tenant_stats(other) for other in TENANTS]
        reserved = sum(
            s.reserved_blocks for s, other in zip(stats, TENANTS, strict=True) if other != tenant
        )
        most = min(self._pool_blocks - reserved, self._cache.tenant_stats(tenant).max_blocks)
        return self._n_blocks(length) > most

    def fits(self, tenant: str, n_blocks: int, n_path: int, leases: Sequence[Lease]) -> bool:
        """Return whether a tenant's requests may have so many more.

        Args:
            n_path: cached blocks that turn held as well.
        """
        asked = self._asked(leases)
        own = asked[tenant] + n_blocks + n_path
        others = 0
        for other in TENANTS:
            if other != tenant:
                others += max(asked[other], self._cache.tenant_stats(other).reserved_blocks)
        most = self._cache.tenant_stats(tenant).max_blocks
        return own <= most and own + others <= self._pool_blocks

    def before(
        self, tenant: str, length: int, n_hit: int | None, leases: Sequence[Lease]
    ) -> Outlook:
        """Look ahead at a request of `length` tokens. `n_hit`: blocks it will match, if known."""
        n_all = self._n_blocks(length)
        n_missing = n_all - (n_hit or 0)
        return Outlook(
            is_too_large=self.is_too_large(tenant, length),
            may_fit=n_hit is None or self.fits(tenant, n_missing, 0, leases),
            surely_fits=self.fits(tenant, n_missing, n_hit or 0, leases),
            takes_no_retained=self.is_given_by_traffic(tenant, n_missing, n_hit or 0),
        )

    def assert_others_keep_their_reserves(self, tenant: str, leases: Sequence[Lease]) -> None:
        """Fail if what a tenant was just given is more than it may have."""
        assert self.fits(tenant, 0, 0, leases)

    def is_given_by_traffic(self, tenant: str, n_blocks: int, n_hit: int) -> bool:
        """Return whether so many blocks can be had without anything that is retained.

        Args:
            n_hit: blocks that a request matches: they may be in the way.
        """
        stale, listed = 0, Counter[str]()
        for tree in self.trees():
            for node in tree.nodes:
                if not node.on_device:
                    continue
                if not node.pins and not tree.is_current:
                    stale += node.n_blocks
                elif not node.pins and not node.retained:
                    listed[tree.namespace.tenant] += node.n_blocks
        given = self._cache.counts(self._smallest).free + stale
        for other in TENANTS:
            stats = self._cache.tenant_stats(other)
            excess = stats.cached_blocks + stats.held_blocks - stats.reserved_blocks
            if other == tenant:
                excess += n_blocks
                if stats.cached_blocks + stats.held_blocks + n_blocks > stats.max_blocks:
                    return False
            if other in (tenant, SYSTEM_TENANT):
                listed[other] -= n_hit
            given += max(min(listed[other], excess), 0)
        return n_blocks <= given

    def _asked(self, leases: Sequence[Lease]) -> Counter[str]:
        asked = Counter({t: self._cache.tenant_stats(t).held_blocks for t in TENANTS})
        for lease in leases:
            asked[lease.namespace.tenant] -= lease.n_slack
        return asked

    def _n_blocks(self, length: int) -> int:
        return -(-length // self._block_tokens)
