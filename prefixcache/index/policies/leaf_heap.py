"""Leaves in the order of a key, with cheap removal from anywhere."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from prefixcache.index.entry import Entry

_SLACK_SLOTS = 64  # dead slots that are never worth a clean-up

Key = TypeVar("Key", bound=float | tuple[float, float])  # the smallest is first


class LeafHeap(Generic[Key]):
    """A heap whose entries leave by being forgotten.

    The slots of forgotten entries are dropped when they come up, and all at once when they
    outnumber the living. Equal keys keep the order in which they came in.
    """

    def __init__(self) -> None:
        self._slots: list[tuple[Key, int, Entry]] = []
        self._serials: dict[Entry, int] = {}  # of the slot that counts
        self._n_pushed = 0

    def push(self, entry: Entry, key: Key) -> None:
        """Put `entry` in, or in another place if it is in. O(log n), amortised."""
        serial = self._n_pushed = self._n_pushed + 1
        self._serials[entry] = serial
        heappush(self._slots, (key, serial, entry))
        self._drop_dead_if_many()

    def discard(self, entry: Entry) -> None:
        """Forget `entry`; one that is not in is ignored. O(1), amortised."""
        if self._serials.pop(entry, None) is not None:
            self._drop_dead_if_many()

    def first(self) -> tuple[Key, Entry] | None:
        """Return the smallest key and its entry, which stays in. O(log n), amortised."""
        slots, serials = self._slots, self._serials
        while slots:
            key, serial, entry = slots[0]
            if serials.get(entry) == serial:
                return key, entry
            heappop(slots)
        return None

    def _drop_dead_if_many(self) -> None:
        serials = self._serials
        if len(self._slots) <= 2 * len(serials) + _SLACK_SLOTS:
            return
        self._slots = [slot for slot in self._slots if serials.get(slot[2]) == slot[1]]
        heapify(self._slots)
