"""What a tier that outlives the process can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from prefixcache.tiers.keys import StoredScope
from prefixcache.tiers.records import BlockRecord, WantedBlock


class BlockTier(Protocol):
    """Keeps records by their keys, as long as it likes.

    The caller makes `read`, `write` and `invalidate` calls on a thread where waiting hurts nobody,
    one at a time; `likely_length` comes from any thread and must not wait. The tier promises that
    what it returns is byte for byte what was written, or nothing: whatever it cannot verify it
    drops, counts and logs. It raises TierError where it cannot be used at all for now: it is then
    left alone for some time.
    """

    def likely_length(self, keys: Sequence[bytes]) -> int | None:
        """Return how many leading keys it holds as far as it knows at once; None: it must ask."""

    def read(self, wanted: Sequence[WantedBlock]) -> list[BlockRecord]:
        """Return the records of the leading blocks that it has, verified, in order."""

    def write(self, records: Sequence[BlockRecord]) -> None:
        """Keep records; those it has already are skipped. Older ones go where room is needed."""

    def invalidate(self, scope: StoredScope) -> None:
        """Return nothing of this scope any more that was written before, nor after a restart.

        Cost: O(1) in the records; their room is taken back later.
        """

    def close(self) -> None:
        """Finish what is begun, and let go of files and connections."""


class Room(NamedTuple):
    """How much a tier may hold, and what it holds now."""

    size_bytes: int
    used_bytes: int


@runtime_checkable
class HasRoom(Protocol):
    """A tier whose room is its own, and known to it."""

    def room(self) -> Room | None:
        """Return it as far as it is known. From any thread; never waits."""
