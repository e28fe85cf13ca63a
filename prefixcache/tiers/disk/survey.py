"""What lies in a disk tier's folder, seen from outside: nothing is changed, no lock is taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefixcache.errors import ConfigError
from prefixcache.index import TOKEN_BYTES
from prefixcache.tiers.disk.folder import SCOPES, disk_errors, is_in_use, segment_paths, used_bytes
from prefixcache.tiers.disk.scopes import Invalidated, read_scopes
from prefixcache.tiers.disk.segment import Found, Segment
from prefixcache.tiers.frames import Head, read_record
from prefixcache.tiers.refusals import RefusalReason, RefusedError


@dataclass(frozen=True, slots=True)
class ModelShare:
    """What of it is one model's, and can be read."""

    model: bytes  # its digest
    n_adapters: int
    n_tenants: int
    n_blocks: int
    n_tokens: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that cannot be read."""

    place: str  # a file's name, and where in it
    reason: RefusalReason


@dataclass(frozen=True, slots=True)
class Survey:
    """All that was found."""

    is_in_use: bool  # then what comes and goes meanwhile may be missing, or count as damage
    n_files: int  # of records
    n_bytes: int  # of all files in the folder
    wasted_bytes: int  # of records that were invalidated or replaced
    models: Sequence[ModelShare]
    left_alone: Sequence[Trouble]  # files that are not this version's
    damage: Sequence[Trouble]

    @property
    def n_blocks(self) -> int:
        """That can be read."""
        return sum(share.n_blocks for share in self.models)


@dataclass(frozen=True, slots=True)
class _Record:
    head: Head
    n_bytes: int


def survey(folder: Path, *, verify: bool) -> Survey:
    """Look at every record's head, and if `verify` at every byte.

    Raises:
        ConfigError: there is no such folder, or no tier has ever used it.
        TierError: the system refuses to let it be read.
    """
    if not folder.is_dir():
        raise ConfigError("DIR", str(folder), "is no folder")
    with disk_errors(folder):
        return _Look(folder, verify).survey()


class _Look:
    """One walk through the files."""

    def __init__(self, folder: Path, verify: bool) -> None:
        self._folder, self._verify = folder, verify
        self._records: dict[bytes, _Record] = {}  # by key: the youngest counts
        self._all_bytes = 0
        self._left_alone: list[Trouble] = []
        self._damage: list[Trouble] = []

    def survey(self) -> Survey:
        """Return what there is."""
        paths = segment_paths(self._folder)
        known = self._known()
        if known is None and not paths and not self._damage:
            raise ConfigError("DIR", str(self._folder), "holds no cached blocks; see --disk")
        for number, path in paths:
            self._segment(number, path, known)
        return Survey(
            is_in_use=is_in_use(self._folder),
            n_files=len(paths),
            n_bytes=used_bytes(self._folder),
            wasted_bytes=self._all_bytes - sum(r.n_bytes for r in self._records.values()),
            models=_shares(list(self._records.values())),
            left_alone=self._left_alone,
            damage=self._damage,
        )

    def _known(self) -> Invalidated | None:
        try:
            return read_scopes(self._folder)
        except RefusedError as error:
            is_other = error.reason == "version"
            (self._left_alone if is_other else self._damage).append(Trouble(SCOPES, error.reason))
            return None

    def _segment(self, number: int, path: Path, known: Invalidated | None) -> None:
        folder_id, serial = (b"", 0) if known is None else (known.folder_id, known.serial)
        try:
            segment = Segment.open(number, path, folder_id, serial, writable=False)
        except FileNotFoundError:  # a server needed its room
            return
        except RefusedError as error:
            is_other = error.reason == "version"
            (self._left_alone if is_other else self._damage).append(
                Trouble(path.name, error.reason)
            )
            return
        try:
            for found in self._valid(segment):
                self._take(found, known)
        finally:
            segment.close()

    def _valid(self, segment: Segment) -> Iterator[Found]:
        """Yield what is whole, as far as is looked; the rest is damage."""
        for found in segment.scan():
            try:
                if isinstance(found, RefusedError):
                    raise found
                if self._verify:
                    frame = found.frame
                    at = found.offset + frame.head_bytes
                    read_record(frame, segment.read(at, [frame.payload_bytes])[0])
            except RefusedError as error:
                where = f" at {found.offset}" if isinstance(found, Found) else ""
                self._damage.append(Trouble(segment.path.name + where, error.reason))
            else:
                yield found

    def _take(self, found: Found, known: Invalidated | None) -> None:
        head = found.frame.head
        self._all_bytes += found.frame.n_bytes
        if known is None or found.frame.stamp >= known.floor(head.namespace):
            self._records[head.key] = _Record(head, found.frame.n_bytes)


def _shares(records: Sequence[_Record]) -> list[ModelShare]:
    by_model: dict[bytes, list[_Record]] = defaultdict(list)
    for record in records:
        by_model[record.head.namespace.model].append(record)
    return [
        ModelShare(
            model,
            n_adapters=len({r.head.namespace.adapter for r in its} - {None}),
            n_tenants=len({r.head.namespace.tenant for r in its}),
            n_blocks=len(its),
            n_tokens=sum(len(r.head.token_ids) // TOKEN_BYTES for r in its),
            n_bytes=sum(r.n_bytes for r in its),
        )
        for model, its in sorted(by_model.items())
    ]
