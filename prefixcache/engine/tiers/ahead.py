"""Reading from lasting tiers while a request waits."""

from __future__ import annotations

from collections.abc import Callable
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

    @property
    def n_found(self) -> int:
        """Blocks that have come so far."""
        return sum(len(records) for _, records in self.found)


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
    ) -> None:
        """Make it. `most_bytes`: of all that is read and not taken yet, but for a single one."""
        self._lanes = lanes
        self._worth = worth
        self._clock = clock
        self._block_tokens = block_tokens
        self._block_bytes = block_bytes
        self._most_bytes = most_bytes
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

    def is_reading(self, sequence: Sequence) -> bool:
        """Whether a request had better wait: what it wants is under way, and in time."""
        fetch = self._fetches.get(sequence)
        if fetch is None:
            return False
        self._advance(fetch)
        if fetch.read is None:
            return False
        if self._clock() < fetch.deadline:
            return True
        self.late_reads += 1
        fetch.read.is_dropped, fetch.read, fetch.lanes = True, None, []
        return False

    def take(self, sequence: Sequence) -> Fetch | None:
        """End the reading for a request, and return it; None: there was none."""
        fetch = self._fetches.pop(sequence, None)
        if fetch is None:
            return None
        self._advance(fetch)
        if not any(other is fetch for other in self._fetches.values()):
            del self._by_key[fetch.path.key(fetch.start)]
            if fetch.read is not None:
                fetch.read.is_dropped = True
        return fetch

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
        while fetch.read is not None and fetch.read.is_done:
            assert fetch.asked is not None
            if fetch.read.records:
                fetch.found.append((fetch.asked.name, fetch.read.records))
            fetch.read = None
            self._ask_next(fetch)

    def _ask_next(self, fetch: Fetch) -> None:
        at = fetch.start + fetch.n_found
        while fetch.lanes and fetch.read is None and at < fetch.stop:
            lane = fetch.lanes.pop(0)
            fetch.asked = lane
            fetch.read = lane.read([fetch.path.wanted(block) for block in range(at, fetch.stop)])
