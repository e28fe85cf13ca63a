"""All segments of a folder, where in them each record is, and which go when room is short."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from prefixcache.errors import TierError
from prefixcache.index import Packed
from prefixcache.tiers.disk.folder import (
    SCOPES,
    DiskFolder,
    segment_name,
    segment_paths,
    sidecar_name,
    used_bytes,
)
from prefixcache.tiers.disk.kept import KeptSegment, load_entries
from prefixcache.tiers.disk.scopes import Scopes
from prefixcache.tiers.disk.segment import TOP_BYTES, Segment
from prefixcache.tiers.disk.sidecar import Entry, most_bytes, written
from prefixcache.tiers.frames import read_frame, read_record
from prefixcache.tiers.records import BlockRecord
from prefixcache.tiers.refusals import RefusalReason, Refusals, RefusedError

Written = tuple[Entry, Sequence[Packed]]  # a record's place, to be filled in, and its bytes

_log = logging.getLogger(__name__)


class Shelf:
    """Keeps records in segments, within `max_bytes` for all files of the folder.

    Records are added at the end of the youngest segment. For room the oldest one goes as a whole;
    those of its records that were asked for since they were written are moved on to the end, up
    to half of it. A segment in which all is dead goes before that.
    """

    def __init__(
        self,
        folder: DiskFolder,
        scopes: Scopes,
        refusals: Refusals,
        *,
        max_bytes: int,
        segment_bytes: int,
    ) -> None:
        """Find what lies in the folder. Raises OSError, TierError."""
        self._folder, self._scopes, self._refusals = folder, scopes, refusals
        self.max_bytes, self._segment_bytes = max_bytes, segment_bytes
        self.entries: dict[bytes, Entry] = {}  # other threads look a key up
        self._kept: dict[int, KeptSegment] = {}  # oldest first
        self._next_number = 1
        folder.remove_unfinished()
        for number, _ in segment_paths(folder.path):
            self._load(number)
        ours = sum(kept.files_bytes for kept in self._kept.values())
        self._other_bytes = used_bytes(folder.path) - ours
        self._old_scopes_bytes = folder.size(SCOPES)  # of these
        self.make_room(0)
        self._scopes.forget(
            entry.stamp for kept in self._kept.values() for entry in kept.entries
        )  # the dead are on the disk still

    @property
    def n_bytes(self) -> int:
        """Of all files, with what closing them adds."""
        ours = sum(kept.n_bytes for kept in self._kept.values())
        return ours + self._other_bytes + self._scopes.n_bytes

    @property
    def files_bytes(self) -> int:
        """Of all files as they are. From any thread."""
        ours = sum(kept.files_bytes for kept in list(self._kept.values()))
        scopes = self._scopes.n_bytes  # 0: not written since the start
        return ours + self._other_bytes + (scopes - self._old_scopes_bytes if scopes else 0)

    def is_live(self, entry: Entry) -> bool:
        """Whether it is the record of its key, and not invalidated. From any thread."""
        return self.entries.get(entry.key) is entry and self._is_valid(entry)

    def segment(self, entry: Entry) -> Segment:
        """Return the file that it is in."""
        return self._kept[entry.segment_number].segment

    def add(self, batch: Sequence[Written]) -> None:
        """Keep records. Raises OSError, TierError: none of them is kept then."""
        size = sum(entry.n_bytes for entry, _ in batch)
        self.make_room(TOP_BYTES + size + most_bytes(len(batch), len(batch)))
        self._append(batch)

    def make_room(self, n_bytes: int) -> None:
        """Give up the oldest until so much fits. Raises OSError, TierError: it never will."""
        while self.n_bytes + n_bytes > self.max_bytes:
            if not self._kept:
                raise TierError(
                    f"{self._folder.path} may have {self.max_bytes} bytes; {self.n_bytes} are"
                    f" other files' and {n_bytes} are needed. Raise the limit or remove the files."
                )
            self._give_up(self._victim())

    def compact(self) -> None:
        """Take back the room of records that are dead, damaged or replaced. Raises OSError."""
        for kept in list(self._kept.values()):
            live = [entry for entry in kept.entries if self.is_live(entry) and self._sound(entry)]
            if sum(entry.n_bytes for entry in live) + TOP_BYTES < kept.segment.n_bytes:
                self._move(kept, live)

    def close(self) -> None:
        """Finish the youngest segment, and let go of all."""
        try:
            for kept in self._kept.values():
                self._finish(kept)
        finally:
            for kept in self._kept.values():
                kept.segment.close()
            self._kept, self.entries = {}, {}

    def record(self, entry: Entry, data: memoryview) -> BlockRecord | None:
        """Return what an entry's bytes hold; None, counted, and known no more: it is damaged."""
        try:
            frame = read_frame(data)
            if (frame.stamp, frame.head.key) != (entry.stamp, entry.key):
                raise RefusedError("other_block")
            return read_record(frame, data[frame.head_bytes :])
        except RefusedError as error:
            self.refuse(entry, error.reason)
            return None

    def refuse(self, entry: Entry, reason: RefusalReason) -> None:
        """Count it, and know it no more."""
        self._refusals.note(reason, f"record {entry.segment_number}:{entry.offset}")
        self._discard(entry)

    def _discard(self, entry: Entry) -> None:
        """Know it no more."""
        if self.entries.get(entry.key) is entry:
            del self.entries[entry.key]

    def _sound(self, entry: Entry) -> bool:
        (data,) = self.segment(entry).read(entry.offset, [entry.n_bytes])
        return self.record(entry, data) is not None

    def _is_valid(self, entry: Entry) -> bool:
        return self._scopes.floor(entry.namespace) <= entry.stamp <= self._scopes.serial

    def _load(self, number: int) -> None:
        path = self._folder.path / segment_name(number)
        self._next_number = number + 1
        try:
            opened = Segment.open(number, path, self._scopes.folder_id, self._scopes.serial)
        except RefusedError as error:
            self._refusals.note(error.reason, f"segment {number}")
            if error.reason != "version":  # another version's are not ours to remove
                self._remove_files(number)
            return
        kept = load_entries(self._folder, opened, self._refusals)
        self._kept[number] = kept
        for entry in filter(self._is_valid, kept.entries):
            self.entries[entry.key] = entry
        if not kept.entries:
            self._move(kept, ())

    def _append(self, batch: Sequence[Written]) -> None:
        if not batch:
            return
        data = b"".join(piece for _, pieces in batch for piece in pieces)
        kept = self._youngest_for(len(data))
        at = kept.segment.append(data)
        for entry, _ in batch:
            entry.segment_number, entry.offset = kept.segment.number, at
            at += entry.n_bytes
            kept.add(entry)
            self.entries[entry.key] = entry

    def _youngest_for(self, n_bytes: int) -> KeptSegment:
        """Return the segment to write to: a new one where the youngest would grow too long."""
        youngest = next(reversed(self._kept.values()), None)
        if youngest is not None:
            if youngest.segment.n_bytes + n_bytes <= self._segment_bytes:
                if youngest.sidecar_bytes:
                    self._folder.remove(sidecar_name(youngest.segment.number))
                    youngest.sidecar_bytes = 0
                return youngest
            self._finish(youngest)
        number = self._next_number
        path = self._folder.path / segment_name(number)
        made = Segment.create(number, path, self._scopes.folder_id, self._scopes.serial)
        self._next_number += 1
        return self._kept.setdefault(number, KeptSegment(made))

    def _finish(self, kept: KeptSegment) -> None:
        """Write what it holds beside it; where that cannot be, the next start takes longer."""
        if kept.sidecar_bytes:
            return
        data = written(kept.segment.number, kept.segment.n_bytes, kept.entries)
        try:
            self._folder.replace(sidecar_name(kept.segment.number), data)
        except OSError as error:
            _log.warning("no index of segment %d: %s", kept.segment.number, error.strerror)
        else:
            kept.sidecar_bytes = len(data)

    def _victim(self) -> KeptSegment:
        dead = (kept for kept in self._kept.values() if kept.is_dead(self._scopes))
        return next(dead, None) or next(iter(self._kept.values()))

    def _give_up(self, kept: KeptSegment) -> None:
        movers: list[Entry] = []
        left = kept.segment.n_bytes // 2
        for entry in kept.entries:
            left -= entry.n_bytes if entry.is_used else 0
            if entry.is_used and left >= 0 and self.is_live(entry):
                movers.append(entry)
        self._move(kept, movers)

    def _move(self, kept: KeptSegment, movers: Iterable[Entry]) -> None:
        """Remove a segment, and write some of its records to the end again."""
        number = kept.segment.number
        batch: list[Written] = []
        for entry in movers:
            moved = Entry(entry.key, entry.namespace, entry.stamp, 0, 0, entry.n_bytes)
            batch.append((moved, kept.segment.read(entry.offset, [entry.n_bytes])))
        for entry in kept.entries:
            self._discard(entry)
        self._remove_files(number)
        del self._kept[number]
        kept.segment.close()
        _log.debug("segment %d went, %d of its records were moved on", number, len(batch))
        self._append(batch)

    def _remove_files(self, number: int) -> None:
        self._folder.remove(sidecar_name(number))
        self._folder.remove(segment_name(number))
