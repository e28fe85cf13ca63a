"""The layer groups of a store, as the index knows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from prefixcache.config import EngineConfig
from prefixcache.index import BlockCopy, BlockEvent, Lease, LowerTier, PrefixCache
from prefixcache.index.policies import PolicyOptions, make_policy
from prefixcache.index.spans import Runs, cut, n_blocks_in
from prefixcache.kv import KVStore
from prefixcache.types import Span


@dataclass(frozen=True, slots=True)
class IndexGroups:
    """Which pools and windows the index is to have for a store.

    A group with a window and fewer blocks than there are positions lets go of what the window has
    passed. Where all groups do, the index has one more in front, with no KV behind it, that
    knows every position. Where none does, windows are no matter of the index.
    """

    pool_blocks: tuple[int, ...]
    windows: tuple[int | None, ...]
    leads: tuple[int, ...]  # the first tokens that each group keeps beside its window
    n_added: int  # groups of the index before those of the store

    @classmethod
    def of(cls, store: KVStore) -> IndexGroups:
        """Return the groups of `store`."""
        pools = store.pools
        windows = tuple(
            group.window if n_blocks < pools.n_blocks else None
            for group, n_blocks in zip(store.layout.groups, pools.group_blocks, strict=True)
        )
        leads = tuple(
            0 if window is None else group.lead
            for group, window in zip(store.layout.groups, windows, strict=True)
        )
        if None in windows:
            return cls(pools.group_blocks, windows, leads, 0)
        return cls((pools.n_blocks, *pools.group_blocks), (None, *windows), (0, *leads), 1)

    @property
    def whole(self) -> int:
        """The index's first group that has every position."""
        return self.windows.index(None)

    def of_store(self) -> range:
        """Return the groups of the index that have KV behind them."""
        return range(self.n_added, len(self.windows))

    def new_cache(
        self,
        config: EngineConfig,
        copy_block: Callable[[BlockCopy], None],
        clock: Callable[[], float],
        lower_tier: LowerTier | None = None,
    ) -> PrefixCache:
        """Return an empty index over these groups.

        Args:
            copy_block: copies KV within the store.
            lower_tier: takes what leaves the device.
            clock: seconds, never falling.
        """
        options = PolicyOptions(idle_ttl_seconds=config.idle_ttl_seconds)
        return PrefixCache(
            pool_blocks=self.pool_blocks,
            windows=self.windows,
            leads=self.leads,
            block_size_tokens=config.block_size_tokens,
            growth_blocks=config.growth_blocks,
            token_exact_reuse=config.token_exact_reuse,
            policy=partial(make_policy, config.eviction_policy, options),
            copy_block=copy_block,
            lower_tier=lower_tier,
            clock=clock,
        )

    def tables(self, lease: Lease) -> tuple[tuple[Span, ...], ...]:
        """Return a lease's blocks in each group of the store, but those of leads."""
        return tuple(lease.spans(group) for group in self.of_store())

    def lead_tables(self, lease: Lease) -> tuple[tuple[Span, ...], ...]:
        """Return a lease's blocks of each group's lead, where it keeps one."""
        return tuple(lease.lead_spans(group) for group in self.of_store())

    def first_blocks(self, lease: Lease) -> tuple[int, ...]:
        """Return which block of its sequence each of a lease's tables begins with."""
        return tuple(lease.first_block(group) for group in self.of_store())

    def extents(self, lease: Lease) -> list[tuple[tuple[int, Runs], tuple[int, Runs]]]:
        """Return each store group's blocks of a lease: those of its lead, and the others.

        Each with the block of the sequence that it begins with.
        """
        return [
            ((0, lease.lead_spans(group)), (lease.first_block(group), lease.spans(group)))
            for group in self.of_store()
        ]

    def runs_of(self, event: BlockEvent) -> list[Runs]:
        """Return each store group's blocks of an event, as far as it has them: the last ones.

        An event is of the last blocks of its node.
        """
        whole, windows = iter(event.runs), iter(event.windows)
        by_group = [next(whole if window is None else windows) for window in self.windows]
        return [_last_of(runs, event.n_blocks) for runs in by_group[self.n_added :]]


def _last_of(runs: Runs, n_blocks: int) -> Runs:
    return cut(runs, max(n_blocks_in(runs) - n_blocks, 0))[1]
