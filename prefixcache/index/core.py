"""The parts of an index, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prefixcache.index.accounts import Shares
from prefixcache.index.admission import Admission, BlockCopy
from prefixcache.index.block_format import BlockFormat
from prefixcache.index.committer import Committer
from prefixcache.index.inflight import InFlight
from prefixcache.index.lease import LeaseBook
from prefixcache.index.locations import LowerTier
from prefixcache.index.policies import EvictionPolicy
from prefixcache.index.publisher import Publisher
from prefixcache.index.retainer import Retainer
from prefixcache.index.room import Room
from prefixcache.index.trees import Trees


class Core(Trees):
    """What `PrefixCache` and its parts for prompts, twins and copies share: trees and requests."""

    def __init__(
        self,
        pool_blocks: Sequence[int],
        windows: Sequence[int | None],
        leads: Sequence[int],
        block: BlockFormat,
        make_policy: Callable[[], EvictionPolicy],
        shares: Shares,
        lower_tier: LowerTier | None,
        copy_block: Callable[[BlockCopy], None] | None,
    ) -> None:
        super().__init__(pool_blocks, windows, leads, block, make_policy, shares, lower_tier)
        most_retained = shares.retained_of(self.pools.n_blocks)
        self.retainer = Retainer(self.keeper, self.forest, self.retentions, most_retained)
        self.leases = LeaseBook(self.windows, self.places)
        self.in_flight = InFlight(self.leases, block.n_tokens)
        self.publisher = Publisher(self.forest, self.block)
        self.room = Room(
            self.pools, self.accounts, self.keeper, self.leases, self.retentions, self.hooks
        )
        self.committer = Committer(self)
        self.admission = Admission(self, self.publisher, self.leases, self.room, copy_block)
