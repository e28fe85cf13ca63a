"""Policies that are nothing but a key: the leaf with the smallest one goes first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from prefixcache.index.entry import Entry
from prefixcache.index.lazy_heap import Key, LazyHeap
from prefixcache.index.policies.links import EntryList, unlink


class KeyedPolicy(ABC, Generic[Key]):
    """Gives up the leaf with the smallest key, which is taken when the entry turns into a leaf.

    A leaf's coming and going is O(log n), amortised; an inner entry's costs next to nothing.
    """

    def __init__(self) -> None:
        self._listed = EntryList()
        self._leaves = LazyHeap[Key, Entry]()

    @abstractmethod
    def _key(self, entry: Entry) -> Key:
        """Return what the leaves are ordered by."""

    def add(self, entry: Entry) -> None:
        """List `entry`; its turn can come once it is a leaf."""
        self._listed.append(entry)
        if not entry.n_resident:
            self._leaves.push(entry, self._key(entry))

    def discard(self, entry: Entry) -> None:
        """Take `entry` off the list."""
        unlink(entry)
        self._leaves.discard(entry)

    def expose(self, entry: Entry) -> None:
        """Put `entry` among the leaves."""
        self._leaves.push(entry, self._key(entry))

    def victim(self, now: float) -> Entry | None:
        """Return the leaf with the smallest key."""
        first = self._leaves.first()
        return None if first is None else first[1]

    def overdue(self, now: float) -> Entry | None:
        """Return None: entries go only to make room."""
        return None


class LfuPolicy(KeyedPolicy[tuple[float, float]]):
    """Gives up the leaf that was found cached least often; among equals, as `LruPolicy`."""

    def _key(self, entry: Entry) -> tuple[float, float]:
        return (entry.hits, entry.last_used)


class FifoPolicy(KeyedPolicy[float]):
    """Gives up the leaf that was stored first, however often it was used since."""

    def _key(self, entry: Entry) -> float:
        return entry.created


class PriorityPolicy(KeyedPolicy[tuple[float, float]]):
    """Gives up the leaf of the lowest priority; among equals, as `LruPolicy`.

    An entry's priority is the highest of the requests that used it.
    """

    def _key(self, entry: Entry) -> tuple[float, float]:
        return (entry.priority, entry.last_used)
