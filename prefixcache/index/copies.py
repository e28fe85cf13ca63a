"""What lies in the lower tier, as the owner of the cache sees it."""

from __future__ import annotations

from collections.abc import Hashable

from prefixcache.index.core import Core
from prefixcache.index.lease import Lease
from prefixcache.index.locations import AwayBlocks
from prefixcache.index.tokens import Packed


class Copies:
    """Prefixes that have left the device and stay known."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def away(self, lease: Lease, tokens: Packed) -> list[AwayBlocks]:
        """Return what of `tokens` comes next after what a request has stored, in the lower tier.

        To use it, load it into the lease's blocks for these positions and commit. Changes nothing.

        Raises:
            LeaseError: the lease was released.
        """
        self._core.leases.require_live(lease)
        return self._core.locations.after(lease.node, memoryview(tokens), lease.n_stored)

    def forget(self, handle: Hashable) -> None:
        """Note that the lower tier has lost a copy. What lay only there, and below, is forgotten.

        An unknown handle is ignored. Cost: what is forgotten.
        """
        self._core.keeper.forget_copy(handle)
