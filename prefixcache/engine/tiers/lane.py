"""A tier that outlives the process, behind a thread of its own: nobody waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from prefixcache.engine.tiers.breaker import Breaker
from prefixcache.engine.tiers.speeds import TransferSpeed
from prefixcache.tiers import BlockRecord, BlockTier, HasRoom, Room, StoredScope, WantedBlock

logger = logging.getLogger(__name__)

QUEUE_BYTES = 256 * 2**20  # of records that wait to be written; more are dropped
MOST_READS = 64  # that wait
BATCH_BYTES = 1 << 22  # of KV, that a tier is asked for at a time


class Read:
    """What is asked of a tier, and what came of it. `is_done` is set last."""

    __slots__ = ("_came", "is_done", "is_dropped", "n_put", "wanted")

    def __init__(self, wanted: Sequence[WantedBlock]) -> None:
        self.wanted = wanted
        self.is_done = False
        self.is_dropped = False  # nobody waits for it any more
        self.n_put = 0  # records that came
        self._came: deque[BlockRecord] = deque()

    def put(self, record: BlockRecord) -> None:
        """Have one more. Called from the lane's thread alone."""
        self._came.append(record)
        self.n_put += 1

    def take(self) -> list[BlockRecord]:
        """Return what came since the last call, in order. More may come until `is_done`."""
        return [self._came.popleft() for _ in range(len(self._came))]


@dataclass(slots=True)
class LaneCounters:
    """What a lane has done since it was made; none ever falls."""

    read_bytes: int = 0
    written_bytes: int = 0
    dropped_bytes: int = 0  # were to be written, and there was no room or the tier was out
    refused_blocks: int = 0  # read, and not what was asked for


class TierLane:
    """Reads and writes of one tier, in the background.

    Invalidations come before reads, and reads before writes. An invalidation that fails stays
    first, so nothing is read from a tier that does not know of it.
    """

    def __init__(
        self,
        name: str,
        tier: BlockTier,
        part_bytes: Sequence[tuple[int, bool]],
        *,
        told: Callable[[], None] = lambda: None,
        queue_bytes: int = QUEUE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start its thread.

        Args:
            part_bytes: for each layer group, what a record's part has to have, and whether a
                record may lack it.
            told: called from the thread whenever something was read, and a read has ended.
        """
        self.name = name
        self.counters = LaneCounters()
        self.speed = TransferSpeed(clock)
        self.breaker = Breaker(name, clock)
        self._tier = tier
        self._part_bytes = tuple(part_bytes)
        self._record_bytes = max(sum(n_bytes for n_bytes, _ in part_bytes), 1)
        self._told = told
        self._queue_bytes = queue_bytes
        self._clock = clock
        self._scopes: deque[StoredScope] = deque()
        self._reads: deque[Read] = deque()
        self._writes: deque[list[BlockRecord]] = deque()
        self._n_waiting_bytes = 0
        self._is_closing = False
        self._is_given_up = False  # nobody waits for the thread's last call any more
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"{name} tier")
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the records that are not written yet, those that are being written too."""
        return self._n_waiting_bytes

    @property
    def room(self) -> Room | None:
        """How much the tier may hold and holds; None: it does not know."""
        return self._tier.room() if isinstance(self._tier, HasRoom) else None

    def likely_length(self, keys: Sequence[bytes]) -> int | None:
        """Return how many leading keys the tier has as far as it knows; None: it must be asked.

        Never waits. A tier that is left out has none.
        """
        if self.breaker.is_out or self._scopes:
            return 0
        try:
            return self._tier.likely_length(keys)
        except Exception as error:  # the edge: whatever a tier does, requests go on
            self.breaker.fail(error)
            return 0

    def read(self, wanted: Sequence[WantedBlock]) -> Read | None:
        """Ask for the leading records of `wanted`; None: not now."""
        if self.breaker.is_out:
            return None
        with self._changed:
            if len(self._reads) >= MOST_READS or self._is_closing:
                return None
            read = Read(wanted)
            self._reads.append(read)
            self._changed.notify_all()
        return read

    def write(self, records: list[BlockRecord]) -> None:
        """Have records kept some time; what finds no room in the queue is dropped and counted."""
        n_bytes = sum(record.n_bytes for record in records)
        is_out = self.breaker.is_out
        with self._changed:
            is_full = bool(self._writes) and self._n_waiting_bytes + n_bytes > self._queue_bytes
            if is_full or is_out or self._is_closing:
                self.counters.dropped_bytes += n_bytes
                return
            self._writes.append(records)
            self._n_waiting_bytes += n_bytes
            self._changed.notify_all()

    def invalidate(self, scope: StoredScope) -> None:
        """Have nothing of a scope found any more that was written, or is to be written, until now.

        Does not wait for the tier.
        """
        with self._changed:
            self._scopes.append(scope)
            before = self._queued_bytes()
            kept = [[r for r in batch if not scope.holds(r.namespace)] for batch in self._writes]
            self._writes = deque(batch for batch in kept if batch)
            self._n_waiting_bytes -= before - self._queued_bytes()  # one batch may be under way
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until all that is to be written is, or so long; return whether it is."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, timeout=seconds)

    def drain(self, seconds: float) -> None:
        """Do the same, but do not wait for a tier that is left out."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_idle() or self.breaker.is_out, timeout=seconds)

    def stop(self) -> None:
        """Take and write nothing more. What waits to be written is dropped and counted."""
        with self._changed:
            n_bytes = self._queued_bytes()
            self._writes.clear()
            self._n_waiting_bytes -= n_bytes
            self.counters.dropped_bytes += n_bytes
            self._is_closing = True
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait so long for the call that is under way, after `stop`; then give it up.

        The tier is closed when its call has ended; what that was writing is counted as dropped
        if it has not by then.
        """
        self._thread.join(timeout=seconds)
        with self._changed:
            self._is_given_up = self._thread.is_alive()
            if self._is_given_up:
                self.counters.dropped_bytes += self._n_waiting_bytes
                self._n_waiting_bytes = 0

    def _run(self) -> None:
        while self._go_on():
            pass
        self._invalidate_the_rest()
        try:
            self._tier.close()
        except Exception:  # the edge to a tier's own code
            logger.exception("the %s tier could not be closed", self.name)

    def _go_on(self) -> bool:
        """Wait for something to do and do it; False: there will be nothing more."""
        with self._changed:
            pause = self.breaker.seconds_out
            self._changed.wait_for(self._has_work, timeout=min(pause, 1.0) or None)
            if self._is_closing:
                return False
            if self._reads and (pause or not self._scopes):
                work = partial(self._read, self._reads.popleft())
            elif self.breaker.seconds_out:
                return True
            elif self._scopes:
                work = partial(self._invalidate, self._scopes[0])
            elif self._writes:
                work = partial(self._write, self._writes.popleft())
            else:
                return True
        work()
        return True

    def _is_idle(self) -> bool:
        return not (self._writes or self._scopes or self._n_waiting_bytes)

    def _has_work(self) -> bool:
        is_usable = not self.breaker.seconds_out
        to_do = self._reads or (is_usable and (self._scopes or self._writes))
        return bool(self._is_closing or to_do)

    def _invalidate(self, scope: StoredScope) -> None:
        if self._call(lambda: self._tier.invalidate(scope)):
            with self._changed:
                self._scopes.popleft()
                self._changed.notify_all()

    def _invalidate_the_rest(self) -> None:
        """Try once more what failed before, for a restart must not find what is gone."""
        while self._scopes:
            n_before = len(self._scopes)
            self._invalidate(self._scopes[0])
            if len(self._scopes) == n_before:
                logger.error(
                    "the %s tier was closed before it knew of %d invalidations: a restart may find"
                    " what they name. Invalidate again when it can be used",
                    self.name,
                    n_before,
                )
                return

    def _read(self, read: Read) -> None:
        if not (self._scopes or self.breaker.seconds_out):
            self._fetch(read)
        read.is_done = True
        self._told()

    def _fetch(self, read: Read) -> None:
        """Read some blocks at a time, so that they can be used while the next are read."""
        step = max(BATCH_BYTES // self._record_bytes, 1)
        for at in range(0, len(read.wanted), step):
            asked = read.wanted[at : at + step]
            is_wanted = not (read.is_dropped or self._is_closing)
            is_well = is_wanted and self._call(partial(self._fetch_some, read, asked))
            if not is_well or read.n_put < at + len(asked):
                return
            self._told()

    def _fetch_some(self, read: Read, asked: Sequence[WantedBlock]) -> None:
        begin = self._clock()
        records = self._tier.read(asked)
        n_bytes = sum(record.n_bytes for record in records)
        self.speed.record(n_bytes, self._clock() - begin)
        self.counters.read_bytes += n_bytes
        right = list(takewhile(self._is_right, zip(records, asked, strict=False)))
        for record, _ in right:
            read.put(record)
        self.counters.refused_blocks += len(records) - len(right)

    def _is_right(self, pair: tuple[BlockRecord, WantedBlock]) -> bool:
        record, wanted = pair
        return (
            record.answers(wanted)
            and len(record.parts) == len(self._part_bytes)
            and all(
                may_lack if part is None else len(part) == n_bytes
                for part, (n_bytes, may_lack) in zip(record.parts, self._part_bytes, strict=True)
            )
        )

    def _write(self, batch: list[BlockRecord]) -> None:
        n_bytes = sum(record.n_bytes for record in batch)
        is_written = self._call(lambda: self._tier.write(batch))
        with self._changed:
            if self._is_given_up:
                return  # it was counted then
            if is_written:
                self.counters.written_bytes += n_bytes
            else:
                self.counters.dropped_bytes += n_bytes
            self._n_waiting_bytes -= n_bytes
            self._changed.notify_all()

    def _queued_bytes(self) -> int:
        return sum(record.n_bytes for batch in self._writes for record in batch)

    def _call(self, call: Callable[[], None]) -> bool:
        """Make a call into the tier; return whether it went well."""
        self.breaker.begin()
        try:
            call()
        except Exception as error:  # the edge: whatever a tier does, requests go on
            self.breaker.fail(error)
            return False
        self.breaker.succeed()
        return True
