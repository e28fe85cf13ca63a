"""Doubly linked lists that run through the entries' own fields: no allocation, no hashing."""

from __future__ import annotations

from prefixcache.index.entry import Entry


class EntryList:
    """A ring of entries, oldest to newest, closed by one that is no node:

        end.newer -> oldest -> ... -> newest -> end      (`older` runs the other way)

    An entry is in at most one list. Its links are None while it is in none.
    """

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end = Entry(0, 0, 0.0)
        self.end.older = self.end.newer = self.end

    @property
    def oldest(self) -> Entry | None:
        """The entry that was appended longest ago, or None."""
        oldest = self.end.newer
        return None if oldest is self.end else oldest

    def append(self, entry: Entry) -> None:
        """Put `entry`, which is in no list, at the newest end. O(1)."""
        end = self.end
        newest = end.older
        assert newest is not None
        entry.older = newest
        entry.newer = end
        newest.newer = end.older = entry

    def oldest_leaf(self) -> Entry | None:
        """Return the leaf nearest to the oldest end.

        O(1) where children stand before their parents, for the oldest entry is a leaf then.
        """
        entry = self.end.newer
        while entry is not None and entry.n_resident:
            entry = entry.newer  # comes to the end at last, which has no children
        return None if entry is self.end else entry


def unlink(entry: Entry) -> None:
    """Take `entry` out of its list; one that is in none is left alone. O(1)."""
    older, newer = entry.older, entry.newer
    if older is None or newer is None:
        return
    older.newer = newer
    newer.older = older
    entry.older = entry.newer = None
