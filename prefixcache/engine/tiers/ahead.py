"""Reading from lasting tiers while a request waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field

from prefixcache.engine.sequence import Sequence
from prefixcache.engine.tiers.lane import Read, TierLane
from prefixcache.engine.tiers.naming import Path
from prefixcache.engine.tiers.speeds import Worth
from prefixcache.tiers import BlockRecord

LONGEST_WAIT_SECONDS = 10.0
_ANY_BYTES = 1 << 62
_LEAST_WAIT_SECONDS = 0.2  # where computing would take less: a tier may be a little late
_MEETING_SECONDS = 0.5  # that a reading may still seem to take when it is met, as long as a step
_LONGEST_MEETING_SECONDS = 1.0  # that it may take then


@dataclass(slots=True, eq=False)
class Fetch:
    """What is read for one request: blocks `start` to `stop` - 1, from one tier after another."""

    path: Path
    start: int
    stop: int
    lanes: list[TierLane]  # that were not asked yet
    deadline: float
    read: Read | None = None  # what is asked now
    asked: TierLane | None = None  # of whom
    found: list[tuple[str, list[BlockRecord]]] = field(default_factory=list)
    n_found: int = 0  # blocks that have come so far
    is_met: bool = False  # what is asked now is loaded while it comes

    def collect(self) -> None:
        """Take what has come."""
        if self.read is None or self.asked is None:
            return
        records = self.read.take()
        if records:
            self.found.append((self.asked.name, records))
            self.n_found += len(records)

    def end(self) -> None:
        """Ask nobody any more."""
        if self.read is not None:
            self.read.is_dropped = True
        self.read, self.lanes = None, []


class ReadAhead:
    """Asks the tiers for what a request will find nowhere else, and holds what comes.

    A request waits for that, but only as long as computing would take. Those who want the same
    share one reading.
    """

    def __init__(
        self,
        lanes: Several[TierLane],
        worth: Worth,
        clock: Callable[[], float],
        *,
        block_tokens: int,
        block_bytes: int,
        most_bytes: int,
        meets: bool,
        news: threading.Event,
    ) -> None:
        """Make it.

        Args:
            most_bytes: of all that is read and not taken yet, but for a single one.
            meets: whether a part of what is read can be loaded before it is known what follows.
            news: set whenever something was read.
        """
        self._lanes = lanes
        self._worth = worth
        self._clock = clock
        self._block_tokens = block_tokens
        self._block_bytes = block_bytes
        self._most_bytes = most_bytes
        self._meets = meets
        self._news = news
        self._fetches: dict[Sequence, Fetch] = {}
        self._by_key: dict[bytes, Fetch] = {}  # by the key of the first block wanted
        self.late_reads = 0  # given up because the time was over

    @property
    def is_busy(self) -> bool:
        """Whether something is being read."""
        return any(fetch.read is not None for fetch in self._by_key.values())

    def begin(self, sequence: Sequence, path: Path, start: int, stop: int) -> None:
        """Ask for what `sequence` wants, blocks `start` to `stop` - 1, if it is worth it."""
        size = self._block_tokens
        stop = min(path.end_block, stop)
        if start >= stop:
            return
        key = path.key(start)
        if key not in self._by_key:
            stop = min(stop, start + self._room() // self._block_bytes)
            lanes = [lane for lane in self._lanes if self._is_worth(lane, path, start, stop)]
            if start >= stop or not lanes:
                return
            wait = self._longest_wait((stop - start) * size)
            self._by_key[key] = Fetch(path, start, stop, lanes, self._clock() + wait)
            self._ask_next(self._by_key[key])
        self._fetches[sequence] = self._by_key[key]

    def is_reading(self, sequence: Sequence, *, is_idle: bool) -> bool:
        """Whether a request had better wait: what it wants is under way, and in time.

        `is_idle`: nobody runs, so that no answer is held up by who is admitted before the end of
        its reading, and waits for the rest of it then.
        """
        fetch = self._fetches.get(sequence)
        if fetch is None:
            return False
        fetch.is_met = False
        self._advance(fetch)
        if fetch.read is None:
            return False
        if self._clock() >= fetch.deadline:
            self.late_reads += 1
            fetch.end()
            return False
        fetch.is_met = is_idle and self._can_be_met(fetch)
        return not fetch.is_met

    def take(self, sequence: Sequence) -> Fetch | None:
        """End the reading for a request unless it is met, and return it; None: there was none."""
        fetch = self._fetches.pop(sequence, None)
        if fetch is None:
            return None
        self._advance(fetch)
        if not any(other is fetch for other in self._fetches.values()):
            del self._by_key[fetch.path.key(fetch.start)]
            if not fetch.is_met:
                fetch.end()
        return fetch

    def drop(self, sequence: Sequence) -> None:
        """End the reading for a request that wants nothing of it any more."""
        fetch = self._fetches.get(sequence)
        if fetch is not None:
            fetch.is_met = False
            self.take(sequence)

    def coming(self, fetch: Fetch) -> Iterator[tuple[str, list[BlockRecord]]]:
        """Yield what a fetch that was taken has; if it is met, wait for the rest and yield that.

        What was met is not kept, so that its memory is used for what comes next.
        """
        if not fetch.is_met:
            yield from fetch.found
            return
        end = min(fetch.deadline, self._clock() + _LONGEST_MEETING_SECONDS)
        while fetch.found or fetch.read is not None:
            while fetch.found:
                yield fetch.found.pop(0)
            if fetch.read is not None and self._clock() >= end:
                self.late_reads += 1
                return
            self._advance(fetch)
            if not fetch.found and fetch.read is not None:
                self._news.wait(max(end - self._clock(), 0.0))
                self._news.clear()
                self._advance(fetch)

    def _can_be_met(self, fetch: Fetch) -> bool:
        """Whether the rest comes soon, by what was measured, and is wanted by one request alone."""
        assert fetch.asked is not None
        n_tokens = (fetch.stop - fetch.start - fetch.n_found) * self._block_tokens
        seconds = self._worth.seconds_to_load(fetch.asked.speed, n_tokens)
        n_users = sum(other is fetch for other in self._fetches.values())
        is_soon = seconds is not None and seconds < _MEETING_SECONDS
        return self._meets and fetch.n_found > 0 and n_users == 1 and is_soon

    def _longest_wait(self, n_tokens: int) -> float:
        computing = self._worth.seconds_to_compute(n_tokens)
        wait = LONGEST_WAIT_SECONDS if computing is None else computing
        return min(max(wait, _LEAST_WAIT_SECONDS), LONGEST_WAIT_SECONDS)

    def _room(self) -> int:
        """Return how many bytes may be asked for; alone, a request may have any number."""
        held = sum(fetch.stop - fetch.start for fetch in self._by_key.values())
        if not held:
            return _ANY_BYTES
        return max(self._most_bytes - held * self._block_bytes, 0)

    def _is_worth(self, lane: TierLane, path: Path, start: int, stop: int) -> bool:
        n_likely = lane.likely_length(path.keys_between(start, stop))
        n_blocks = stop - start if n_likely is None else n_likely
        return n_blocks > 0 and self._worth.is_worth(lane.speed, n_blocks * self._block_tokens)

    def _advance(self, fetch: Fetch) -> None:
        """Take what has come, and ask the next tier for the rest."""
        while fetch.read is not None:
            is_done = fetch.read.is_done
            fetch.collect()
            if not is_done:
                return
            fetch.read = None
            self._ask_next(fetch)

    def _ask_next(self, fetch: Fetch) -> None:
        at = fetch.start + fetch.n_found
        while fetch.lanes and fetch.read is None and at < fetch.stop:
            lane = fetch.lanes.pop(0)
            fetch.asked = lane
            fetch.read = lane.read([fetch.path.wanted(block) for block in range(at, fetch.stop)])
