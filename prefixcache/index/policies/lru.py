"""Least recently used first, in constant time."""

from __future__ import annotations

from prefixcache.index.entry import Entry


class EntryList:
    """A doubly linked list through the entries themselves: no allocation, no look-up."""

    __slots__ = ("_end",)

    def __init__(self) -> None:
        self._end = Entry(0, 0, 0.0)  # between the newest and the oldest
        self._end.older = self._end.newer = self._end

    @property
    def oldest(self) -> Entry | None:
        """The entry that was appended longest ago, or None."""
        first = self._end.newer
        return None if first is self._end else first

    def append(self, entry: Entry) -> None:
        """Put `entry` at the newest end, out of the list that it was in."""
        if entry.older is not None:
            unlink(entry)
        end = self._end
        last = end.older
        assert last is not None
        entry.older, entry.newer = last, end
        last.newer = end.older = entry


def unlink(entry: Entry) -> None:
    """Take `entry` out of the list that it is in, if it is in one."""
    older, newer = entry.older, entry.newer
    if older is None or newer is None:
        return
    older.newer, newer.older = newer, older
    entry.older = entry.newer = None


class LruPolicy:
    """Least recently used first.

    Whole paths are unlisted and listed again together, children before parents, so whatever is
    oldest has nothing below it: there is no search for leaves. Every call is O(1).
    """

    def __init__(self) -> None:
        self._listed = EntryList()

    def add(self, entry: Entry) -> None:
        """List `entry` as the newest."""
        self._listed.append(entry)

    def discard(self, entry: Entry) -> None:
        """Take `entry` off the list."""
        unlink(entry)

    def expose(self, entry: Entry) -> None:
        """Do nothing: the order has it already."""

    def victim(self, now: float) -> Entry | None:
        """Return the entry that was listed longest ago."""
        return self._listed.oldest

    def overdue(self, now: float) -> Entry | None:
        """Return None: nothing goes while there is room."""
        return None
