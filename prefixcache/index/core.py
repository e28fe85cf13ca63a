"""The parts of an index, put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prefixcache.errors import ConfigError
from prefixcache.index.accounts import SYSTEM_TENANT, Accounts, Quota
from prefixcache.index.admission import Admission, BlockCopy
from prefixcache.index.committer import Committer
from prefixcache.index.events import Observers
from prefixcache.index.forest import Forest
from prefixcache.index.groups import GroupPools
from prefixcache.index.hooks import Hooks
from prefixcache.index.inflight import InFlight
from prefixcache.index.keeper import Keeper
from prefixcache.index.lease import LeaseBook
from prefixcache.index.locations import Locations, LowerTier
from prefixcache.index.misses import Gone
from prefixcache.index.policies import EvictionPolicy
from prefixcache.index.publisher import Publisher
from prefixcache.index.retainer import Retainer
from prefixcache.index.retention import Retentions
from prefixcache.index.room import Room
from prefixcache.index.tokens import TOKEN_BYTES
from prefixcache.index.windows import Windows


class Core:
    """What `PrefixCache` and its parts for prompts, twins and copies share. Arguments as there."""

    def __init__(
        self,
        pool_blocks: Sequence[int],
        windows: Sequence[int | None],
        block_tokens: int,
        *,
        token_exact: bool,
        make_policy: Callable[[], EvictionPolicy],
        quotas: Mapping[str, Quota],
        published_quota: Quota | None,
        retained_blocks: int | None,
        copy_block: Callable[[BlockCopy], None] | None,
        lower_tier: LowerTier | None,
    ) -> None:
        self.block_bytes = block_tokens * TOKEN_BYTES
        if len(windows) != len(pool_blocks):
            reason = f"must have one entry for each of the {len(pool_blocks)} layer groups"
            raise ConfigError("windows", windows, reason)
        sized = list(zip(pool_blocks, windows, strict=True))
        self.pools = GroupPools([n_blocks for n_blocks, window in sized if window is None])
        self.windows = Windows(
            [n_blocks for n_blocks, window in sized if window is not None],
            [window for window in windows if window is not None],
            block_tokens,
        )
        token_exact = token_exact and not self.windows.pools
        quarter = max(self.pools.n_blocks // 4, 1)
        self.accounts = Accounts(self.pools, make_policy, quotas)
        self.accounts.set_quota(SYSTEM_TENANT, published_quota or Quota(max_blocks=quarter))
        self.hooks = Hooks()
        self.observers = Observers(self.hooks, self.block_bytes)
        self.gone = Gone()
        self.locations = Locations(
            lower_tier,
            self.hooks,
            self.windows,
            self.pools.no_runs,
            self.block_bytes,
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
            self.block_bytes,
        )
        most_retained = quarter if retained_blocks is None else retained_blocks
        if most_retained < 0:
            raise ConfigError("retained_blocks", most_retained, "must be at least 0")
        self.retainer = Retainer(self.keeper, self.forest, self.retentions, most_retained)
        self.places = tuple(_places(windows))
        self.leases = LeaseBook(self.windows, self.places)
        self.in_flight = InFlight(self.leases, block_tokens)
        self.publisher = Publisher(self.forest, self.block_bytes, token_exact=token_exact)
        self.room = Room(
            self.pools, self.accounts, self.keeper, self.leases, self.retentions, self.hooks
        )
        self.committer = Committer(
            self.keeper,
            self.locations,
            self.windows,
            self.retentions,
            self.observers,
            self.hooks,
            self.block_bytes,
        )
        self.admission = Admission(
            self.accounts,
            self.forest,
            self.publisher,
            self.keeper,
            self.leases,
            self.room,
            self.retentions,
            self.gone,
            self.windows,
            self.hooks,
            block_tokens=block_tokens,
            token_exact=token_exact,
            copy_block=copy_block,
        )


def _places(windows: Sequence[int | None]) -> Iterator[tuple[bool, int]]:
    """Yield for each layer group whether it is a window group, and which of its kind."""
    n_of_kind = [0, 0]
    for window in windows:
        is_window = window is not None
        yield is_window, n_of_kind[is_window]
        n_of_kind[is_window] += 1
