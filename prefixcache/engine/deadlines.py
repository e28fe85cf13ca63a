"""Requests that may not wait, or not run, for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count

from prefixcache.engine.sequence import Sequence
from prefixcache.types import FailureKind

_LEAST_ROOM = 64

_Limit = tuple[float, int, Sequence, FailureKind, float]  # when, serial, whose, which, seconds


class Deadlines:
    """Knows whose time is over. Without limits the clock is never looked at.

    Of limits that no longer count it keeps no more than of those that do, or a few.
    """

    def __init__(self, clock: Callable[[], float], *, max_queue_seconds: float | None) -> None:
        self._clock = clock
        self._max_queue_seconds = max_queue_seconds
        self._heap: list[_Limit] = []
        self._room = _LEAST_ROOM  # limits that are kept before the needless ones are dropped
        self._serials = count()

    def note(self, sequence: Sequence) -> None:
        """Begin to count the time of a request that was just taken."""
        self._push(sequence, self._max_queue_seconds, FailureKind.QUEUE_TIMEOUT)
        self._push(sequence, sequence.request.deadline_seconds, FailureKind.DEADLINE)

    def overdue(self) -> Iterator[tuple[Sequence, FailureKind, float]]:
        """Yield each request whose time is over, once, with its kind of limit and the seconds.

        Cost: O(log n) for each limit that is reached. Noting one costs as much, amortised.
        """
        while self._heap and self._heap[0][0] <= self._clock():
            limit = heappop(self._heap)
            if _counts(limit):
                _, _, sequence, kind, seconds = limit
                yield sequence, kind, seconds

    def _push(self, sequence: Sequence, seconds: float | None, kind: FailureKind) -> None:
        if seconds is not None:
            at = self._clock() + seconds
            heappush(self._heap, (at, next(self._serials), sequence, kind, seconds))
        if len(self._heap) > self._room:
            self._heap = list(filter(_counts, self._heap))
            heapify(self._heap)
            self._room = max(_LEAST_ROOM, 2 * len(self._heap))


def overdue_message(kind: FailureKind, limit_seconds: float) -> str:
    """Return what a request without output is told when its time is over."""
    if kind is FailureKind.DEADLINE:
        return f"no output within its deadline of {limit_seconds:g} seconds"
    return f"it waited for {limit_seconds:g} seconds and found no room; try again later"


def _counts(limit: _Limit) -> bool:
    """Return whether a limit still means anything: its request runs, or waits for its turn."""
    _, _, sequence, kind, _ = limit
    is_late = kind is FailureKind.DEADLINE or sequence.cached_tokens is None
    return is_late and not sequence.has_ended
