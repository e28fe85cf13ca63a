"""Things in the order of a key, with cheap removal from anywhere."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

_SLACK_SLOTS = 64  # dead slots that are never worth a clean-up

Key = TypeVar("Key", bound=float | tuple[float, float])  # the smallest is first
Item = TypeVar("Item")  # hashed by identity


class LazyHeap(Generic[Key, Item]):
    """A heap whose items leave by being forgotten.

    The slots of forgotten items are dropped when they come up, and all at once when they
    outnumber the living. Equal keys keep the order in which they came in.
    """

    def __init__(self) -> None:
        self._slots: list[tuple[Key, int, Item]] = []
        self._serials: dict[Item, int] = {}  # of the slot that counts
        self._n_pushed = 0

    def push(self, item: Item, key: Key) -> None:
        """Put `item` in, or in another place if it is in. O(log n), amortised."""
        serial = self._n_pushed = self._n_pushed + 1
        self._serials[item] = serial
        heappush(self._slots, (key, serial, item))
        if len(self._slots) > 2 * len(self._serials) + _SLACK_SLOTS:
            self._drop_dead()

    def discard(self, item: Item) -> None:
        """Forget `item`; one that is not in is ignored. O(1), amortised."""
        self._serials.pop(item, None)
        if len(self._slots) > 2 * len(self._serials) + _SLACK_SLOTS:
            self._drop_dead()

    def first(self) -> tuple[Key, Item] | None:
        """Return the smallest key and its item, which stays in. O(log n), amortised."""
        slots, serials = self._slots, self._serials
        while slots:
            key, serial, item = slots[0]
            if serials.get(item) == serial:
                return key, item
            heappop(slots)
        return None

    def _drop_dead(self) -> None:
        serials = self._serials
        self._slots = [slot for slot in self._slots if serials.get(slot[2]) == slot[1]]
        heapify(self._slots)
