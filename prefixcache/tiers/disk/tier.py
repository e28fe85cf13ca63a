"""Blocks on a disk: they are found again after a restart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import takewhile
from pathlib import Path

from prefixcache.errors import ConfigError, TierError
from prefixcache.tiers.disk.folder import SCOPES, DiskFolder, disk_errors
from prefixcache.tiers.disk.scopes import Scopes
from prefixcache.tiers.disk.shelf import Shelf, Written
from prefixcache.tiers.disk.sidecar import Entry
from prefixcache.tiers.frames import framed
from prefixcache.tiers.keys import StoredScope
from prefixcache.tiers.protocol import Room
from prefixcache.tiers.records import BlockRecord, WantedBlock
from prefixcache.tiers.refusals import Refusals, RefusedError

MIN_BYTES = 1 << 16
_MIN_SEGMENT_BYTES = 1 << 12
_MAX_SEGMENT_BYTES = 1 << 28
_N_SEGMENTS = 16  # of a full folder, or more
_BATCH_BYTES = 1 << 23  # are written in one call
_READ_BYTES = (1 << 22) - (1 << 14)  # in one call: checked while the processor has them, and freed
# memory of this size is used again, where more would be taken anew from the system


class DiskTier:
    """A `BlockTier` in a folder that one process has to itself.

    Formats, order of eviction and what survives what: prefixcache/design/0035-durable-tiers.md.
    """

    def __init__(self, folder: Path, *, max_bytes: int, segment_bytes: int | None = None) -> None:
        """Open the folder; it is made if it is not there.

        Args:
            folder: no other process may use it. New files are this user's alone.
            max_bytes: all files in it together take no more.
            segment_bytes: about so long is a file; None: a part of `max_bytes`.

        Raises:
            ConfigError: a setting cannot work, or the folder is another version's.
            TierError: another process has the folder, or the system refuses it.
        """
        if max_bytes < MIN_BYTES:
            raise ConfigError("disk_size", max_bytes, f"must be at least {MIN_BYTES} bytes")
        part = min(max(max_bytes // _N_SEGMENTS, _MIN_SEGMENT_BYTES), _MAX_SEGMENT_BYTES)
        self.refusals = Refusals("disk")
        self._segment_bytes = segment_bytes or part
        self._largest = max_bytes // 4
        self._is_closed = False
        self._folder = DiskFolder(folder)
        try:
            with disk_errors(folder):
                self._scopes = self._load_scopes()
                self._shelf = Shelf(
                    self._folder,
                    self._scopes,
                    self.refusals,
                    max_bytes=max_bytes,
                    segment_bytes=self._segment_bytes,
                )
        except BaseException:
            self._folder.close()
            raise

    @property
    def n_records(self) -> int:
        """That can be read, unless they were invalidated."""
        return len(self._shelf.entries)

    @property
    def n_bytes(self) -> int:
        """Of all files in the folder, with what closing them adds."""
        return self._shelf.n_bytes

    def room(self) -> Room:
        """Return the limit, and the bytes of all files as they are now."""
        return Room(self._shelf.max_bytes, self._shelf.files_bytes)

    def likely_length(self, keys: Sequence[bytes]) -> int:
        """Return how many leading keys it holds; nothing on the disk is looked at."""
        return sum(1 for _ in takewhile(bool, map(self._live, keys)))

    def read(self, wanted: Sequence[WantedBlock]) -> list[BlockRecord]:
        """Return the records of the leading blocks that it has, verified, in order."""
        records: list[BlockRecord] = []
        with self._open():
            for run in self._runs(wanted):
                sizes = [entry.n_bytes for entry in run]
                pieces = self._shelf.segment(run[0]).read(run[0].offset, sizes)
                for entry, piece in zip(run, pieces, strict=True):
                    record = self._verified(entry, piece, wanted[len(records)])
                    if record is None:
                        return records
                    records.append(record)
        return records

    def write(self, records: Sequence[BlockRecord]) -> None:
        """Keep records; those it has already are skipped. Older ones go where room is needed."""
        with self._open():
            for batch in self._batches(records):
                self._shelf.add(batch)

    def invalidate(self, scope: StoredScope) -> None:
        """Return nothing of this scope any more that was written before, nor after a restart."""
        with self._open():
            self._scopes.bump(scope)
            self._shelf.make_room(0)

    def compact(self) -> None:
        """Take back the room of what is dead or damaged. Cost: live records beside it are copied.

        Raises TierError.
        """
        with self._open():
            self._shelf.compact()

    def close(self) -> None:
        """Finish what is begun, and let others have the folder. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            try:
                with disk_errors(self._folder.path):
                    self._shelf.close()
            finally:
                self._folder.close()

    def _open(self) -> AbstractContextManager[None]:
        if self._is_closed:
            raise TierError(f"the disk tier of {self._folder.path} is closed; open it again")
        return disk_errors(self._folder.path)

    def _load_scopes(self) -> Scopes:
        try:
            return Scopes.load(self._folder)
        except RefusedError as error:
            self.refusals.note(error.reason, f"the file {SCOPES}")
            return Scopes(self._folder, None)

    def _live(self, key: bytes) -> Entry | None:
        entry = self._shelf.entries.get(key)
        return entry if entry is not None and self._shelf.is_live(entry) else None

    def _runs(self, wanted: Sequence[WantedBlock]) -> Iterator[list[Entry]]:
        """Yield the entries of the leading blocks, as long as they stand side by side."""
        run: list[Entry] = []
        for block in wanted:
            entry = self._live(block.key)
            if entry is None:
                break
            if run and not _goes_on(run, entry):
                yield run
                run = []
            run.append(entry)
        if run:
            yield run

    def _verified(self, entry: Entry, data: memoryview, wanted: WantedBlock) -> BlockRecord | None:
        """Return the record if it is whole and the wanted one; else know it no more."""
        record = self._shelf.record(entry, data)
        if record is None:
            return None
        if not record.answers(wanted):
            self._shelf.refuse(entry, "other_block")
            return None
        entry.is_used = True
        return record

    def _batches(self, records: Sequence[BlockRecord]) -> Iterator[list[Written]]:
        batch: list[Written] = []
        seen: set[bytes] = set()
        n_bytes = 0
        for record in records:
            written = self._new(record) if record.key not in seen else None
            if written is None:
                continue
            seen.add(record.key)
            size = written[0].n_bytes
            if batch and n_bytes + size > min(_BATCH_BYTES, self._segment_bytes):
                yield batch
                batch, n_bytes = [], 0
            batch.append(written)
            n_bytes += size
        if batch:
            yield batch

    def _new(self, record: BlockRecord) -> Written | None:
        """Return what is to be written of a record; None: it is here, or can never be."""
        known = self._live(record.key)
        if known is not None:
            known.is_used = True
            return None
        pieces = framed(record, self._scopes.serial)
        size = sum(map(len, pieces))
        if size > self._largest:
            self.refusals.note("too_large", f"a record of {size} bytes")
            return None
        return Entry(record.key, record.namespace, self._scopes.serial, 0, 0, size), pieces


def _goes_on(run: Sequence[Entry], entry: Entry) -> bool:
    """Whether `entry` stands behind a run that may grow by it."""
    last = run[-1]
    is_next = (entry.segment_number, entry.offset) == (
        last.segment_number,
        last.offset + last.n_bytes,
    )
    end = entry.offset + entry.n_bytes
    return is_next and end - run[0].offset <= _READ_BYTES
