"""Segmented LRU: what was hit is protected from what was used once."""

from __future__ import annotations

from prefixcache.index.entry import Entry
from prefixcache.index.policies.segments import DEFAULT_SHARE, Segments


class SlruPolicy:
    """Gives up entries on probation first, then protected ones; each part oldest first.

    An entry that was found cached comes in protected, any other on probation. What has to leave the
    protected part, because that would hold more than `protected_share` of all listed blocks,
    goes on probation as if just used. Every call is O(1), amortised.

    Source: Karedla, Love, Wherry: Caching strategies to improve disk system performance (1994).

    Raises:
        ConfigError: `protected_share` is not above 0 and at most 1.
    """

    def __init__(self, *, protected_share: float = DEFAULT_SHARE) -> None:
        self._segments = Segments(protected_share)

    def add(self, entry: Entry) -> None:
        """List `entry` as the newest of its part."""
        self._segments.enter(entry)

    def discard(self, entry: Entry) -> None:
        """Take `entry` off its list."""
        self._segments.leave(entry)

    def expose(self, entry: Entry) -> None:
        """Keep `entry` where it is."""

    def victim(self, now: float) -> Entry | None:
        """Return the oldest leaf on probation, else the oldest protected one."""
        segments = self._segments
        return segments.probation.oldest_leaf() or segments.protected.oldest_leaf()

    def overdue(self, now: float) -> Entry | None:
        """Return None: entries go only to make room."""
        return None
