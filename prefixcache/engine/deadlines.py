"""Requests that may not wait, or not run, for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count

from prefixcache.engine.sequence import Sequence
from prefixcache.types import FailureKind


class Deadlines:
    """Knows whose time is over. Without limits the clock is never looked at."""

    def __init__(self, clock: Callable[[], float], *, max_queue_seconds: float | None) -> None:
        self._clock = clock
        self._max_queue_seconds = max_queue_seconds
        self._heap: list[tuple[float, int, Sequence, FailureKind, float]] = []
        self._serials = count()

    def note(self, sequence: Sequence) -> None:
        """Begin to count the time of a request that was just taken."""
        self._push(sequence, self._max_queue_seconds, FailureKind.QUEUE_TIMEOUT)
        self._push(sequence, sequence.request.deadline_seconds, FailureKind.DEADLINE)

    def overdue(self) -> Iterator[tuple[Sequence, FailureKind, float]]:
        """Yield each request whose time is over, once, with its kind of limit and the seconds.

        Cost: O(log n) for each limit that is reached.
        """
        while self._heap and self._heap[0][0] <= self._clock():
            _, _, sequence, kind, seconds = heappop(self._heap)
            is_late = kind is FailureKind.DEADLINE or sequence.cached_tokens is None
            if is_late and not sequence.has_ended:
                yield sequence, kind, seconds

    def _push(self, sequence: Sequence, seconds: float | None, kind: FailureKind) -> None:
        if seconds is not None:
            at = self._clock() + seconds
            heappush(self._heap, (at, next(self._serials), sequence, kind, seconds))
