"""What is stored: the pools, whose blocks are whose, and the trees that know what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from prefixcache.errors import ConfigError
from prefixcache.index.accounts import SYSTEM_TENANT, Accounts, Shares
from prefixcache.index.block_format import BlockFormat
from prefixcache.index.events import Observers
from prefixcache.index.forest import Forest
from prefixcache.index.groups import GroupPools
from prefixcache.index.hooks import Hooks
from prefixcache.index.keeper import Keeper
from prefixcache.index.locations import Locations, LowerTier
from prefixcache.index.misses import Gone
from prefixcache.index.policies import EvictionPolicy
from prefixcache.index.retention import Retentions
from prefixcache.index.windows import Windows


class Trees:
    """The parts that know nothing of requests, put together. Arguments as `PrefixCache`'s."""

    def __init__(
        self,
        pool_blocks: Sequence[int],
        windows: Sequence[int | None],
        leads: Sequence[int],
        block: BlockFormat,
        make_policy: Callable[[], EvictionPolicy],
        shares: Shares,
        lower_tier: LowerTier | None,
    ) -> None:
        self.places = tuple(_places(windows))
        self.pools, self.windows = _pools(pool_blocks, windows, leads, block)
        can_copy = block.is_token_exact and not self.windows.pools
        self.block = replace(block, is_token_exact=can_copy)
        self.accounts = Accounts(self.pools, make_policy, shares.quotas)
        self.accounts.set_default(SYSTEM_TENANT, shares.published_of(self.pools.n_blocks))
        self.hooks = Hooks()
        self.observers = Observers(self.hooks, block.n_bytes)
        self.gone = Gone()
        self.locations = Locations(
            lower_tier, self.hooks, self.windows, self.pools.no_runs, block.n_bytes
        )
        self.forest = Forest(self.accounts, self.hooks, self.pools.no_runs)
        self.retentions = Retentions(self.accounts)
        self.keeper = Keeper(
            self.accounts,
            self.forest,
            self.retentions,
            self.observers,
            self.gone,
            self.locations,
            self.windows,
            block.n_bytes,
        )


def _pools(
    pool_blocks: Sequence[int],
    windows: Sequence[int | None],
    leads: Sequence[int],
    block: BlockFormat,
) -> tuple[GroupPools, Windows]:
    """Return the pools of the layer groups without a window, and of those with one."""
    for name, given in (("windows", windows), ("leads", leads)):
        if len(given) != len(pool_blocks):
            reason = f"must have one entry for each of the {len(pool_blocks)} layer groups"
            raise ConfigError(name, given, reason)
    for window, lead in zip(windows, leads, strict=True):
        if lead < 0 or (lead and window is None):
            raise ConfigError("leads", leads, "must be 0 or more, and 0 where there is no window")
    sized = list(zip(pool_blocks, windows, strict=True))
    return GroupPools([n_blocks for n_blocks, window in sized if window is None]), Windows(
        [n_blocks for n_blocks, window in sized if window is not None],
        [window for window in windows if window is not None],
        [lead for window, lead in zip(windows, leads, strict=True) if window is not None],
        block.n_tokens,
    )


def _places(windows: Sequence[int | None]) -> Iterator[tuple[bool, int]]:
    """Yield for each layer group whether it is a window group, and which of its kind."""
    n_of_kind = [0, 0]
    for window in windows:
        is_window = window is not None
        yield is_window, n_of_kind[is_window]
        n_of_kind[is_window] += 1
