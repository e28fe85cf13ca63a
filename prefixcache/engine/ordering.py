"""In which order the requests of one tenant and one priority are admitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

from prefixcache.config import AdmissionOrderName
from prefixcache.engine.sequence import Sequence

LOOKS_A_STEP = 16


class AdmissionOrder(Protocol):
    """Ranks those who wait; it admits nobody itself.

    The queue promises to call `look` before it asks for ranks in a step, to `forget` whoever leaves
    it, to break ties by arrival, and to bound how often anybody is overtaken. The order promises
    to change nothing, that looking costs a bounded number of look-ups however many wait, and that
    ranks stay as they are until the next `look`.
    """

    def look(self, waiting: Iterable[Sequence]) -> None:
        """A step begins with these waiting, in order of arrival."""

    def rank(self, sequence: Sequence) -> int:
        """Return the place of one who waits: the lowest is the next."""

    def forget(self, sequence: Sequence) -> None:
        """It waits no more. Unknown ones are ignored."""


class FcfsOrder:
    """First come, first served."""

    def look(self, waiting: Iterable[Sequence]) -> None:
        """Do nothing: arrival is all that counts."""

    def rank(self, sequence: Sequence) -> int:
        """Return the same for all."""
        return 0

    def forget(self, sequence: Sequence) -> None:
        """Do nothing: nothing is known."""


class CacheAwareOrder:
    """The longest cached prefix first, so that it is used before it is evicted.

    Lengths are estimates: in each step those that were never looked up are, and then those whose
    look-up is oldest, `most_looks` of them in all. Before its first look-up a request counts as
    having nothing cached.
    """

    def __init__(
        self, cached_length: Callable[[Sequence], int], *, most_looks: int = LOOKS_A_STEP
    ) -> None:
        self._cached_length = cached_length
        self._most_looks = most_looks
        self._lengths: dict[Sequence, int] = {}  # the oldest look-up first

    def look(self, waiting: Iterable[Sequence]) -> None:
        """Renew the estimates. Cost: `most_looks` look-ups, and one step of a loop for each."""
        unknown = (sequence for sequence in waiting if sequence not in self._lengths)
        chosen = list(islice(unknown, self._most_looks))
        chosen += islice(self._lengths, self._most_looks - len(chosen))
        for sequence in chosen:
            self._lengths.pop(sequence, None)
            self._lengths[sequence] = self._cached_length(sequence)

    def rank(self, sequence: Sequence) -> int:
        """Return minus the estimated length of what is cached."""
        return -self._lengths.get(sequence, 0)

    def forget(self, sequence: Sequence) -> None:
        """Drop the estimate."""
        self._lengths.pop(sequence, None)


def make_order(
    name: AdmissionOrderName, cached_length: Callable[[Sequence], int]
) -> AdmissionOrder:
    """Return the order of that name; `cached_length` tells how much is cached, without effects."""
    return FcfsOrder() if name == "fcfs" else CacheAwareOrder(cached_length)
