"""Least recently used first, and the same with a time limit."""

from __future__ import annotations

from prefixcache.errors import ConfigError
from prefixcache.index.entry import Entry
from prefixcache.index.policies.links import EntryList, unlink


class LruPolicy(EntryList):
    """Gives up the leaf that was last used longest ago.

    Entries come in by last use, and children before their parents, so the oldest entry is a
    leaf and the list needs no sorting. Every call is O(1).
    """

    add = EntryList.append  # as the one used last
    discard = staticmethod(unlink)

    def expose(self, entry: Entry) -> None:
        """Keep `entry` where it is: its turn is that of its last use."""

    def victim(self, now: float) -> Entry | None:
        """Return the leaf that was last used longest ago."""
        end = self.end  # as `oldest_leaf` does, one call less for each leaf that goes
        entry = end.newer
        while entry is not None and entry.n_resident:
            entry = entry.newer
        return None if entry is end else entry

    def overdue(self, now: float) -> Entry | None:
        """Return None: entries go only to make room."""
        return None


class TtlPolicy(LruPolicy):
    """As `LruPolicy`, and what nobody used for `idle_ttl_seconds` goes although there is room.

    Raises:
        ConfigError: `idle_ttl_seconds` is not above 0.
    """

    def __init__(self, *, idle_ttl_seconds: float) -> None:
        super().__init__()
        if not idle_ttl_seconds > 0:
            raise ConfigError("idle_ttl_seconds", idle_ttl_seconds, "must be above 0")
        self._idle_ttl_seconds = idle_ttl_seconds

    def overdue(self, now: float) -> Entry | None:
        """Return the leaf that was last used longest ago, if that is at least the limit ago."""
        leaf = self.victim(now)
        if leaf is None or now - leaf.last_used < self._idle_ttl_seconds:
            return None
        return leaf
