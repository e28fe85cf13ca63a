"""A tier that cannot be opened now and may be later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from prefixcache.errors import TierError
from prefixcache.tiers import BlockRecord, BlockTier, HasRoom, Room, StoredScope, WantedBlock


class LateTier:
    """A `BlockTier` that is opened at once where that works, and else by the calls that follow.

    Until then each of them fails, and so the tier is left out and tried again.
    """

    def __init__(self, open_tier: Callable[[], BlockTier]) -> None:
        """Try to open it. Raises ConfigError: no later call would work either."""
        self._open_tier = open_tier
        self._tier: BlockTier | None = None
        with suppress(TierError):  # the first call says so
            self._tier = open_tier()

    def likely_length(self, keys: Sequence[bytes]) -> int | None:
        """See `BlockTier`. Nothing is known before it is open: it must be asked."""
        return None if self._tier is None else self._tier.likely_length(keys)

    def room(self) -> Room | None:
        """See `HasRoom`. None: it is not open yet, or does not know."""
        return self._tier.room() if isinstance(self._tier, HasRoom) else None

    def read(self, wanted: Sequence[WantedBlock]) -> list[BlockRecord]:
        """See `BlockTier`."""
        return self._opened().read(wanted)

    def write(self, records: Sequence[BlockRecord]) -> None:
        """See `BlockTier`."""
        self._opened().write(records)

    def invalidate(self, scope: StoredScope) -> None:
        """See `BlockTier`."""
        self._opened().invalidate(scope)

    def close(self) -> None:
        """See `BlockTier`."""
        if self._tier is not None:
            self._tier.close()

    def _opened(self) -> BlockTier:
        if self._tier is None:
            self._tier = self._open_tier()
        return self._tier
