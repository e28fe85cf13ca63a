"""What has been invalidated in a folder, and when: records from before are dead."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import msgspec
import xxhash

from prefixcache.errors import ConfigError
from prefixcache.tiers.disk.folder import SCOPES, DiskFolder
from prefixcache.tiers.frames import FORMAT_VERSION
from prefixcache.tiers.keys import StoredNamespace, StoredScope
from prefixcache.tiers.refusals import RefusedError

_MAGIC = b"PCscopes"
_State = tuple[dict[bytes, tuple[StoredScope, int]], dict[StoredNamespace, int]]
_TOP = struct.Struct("<8sQH")  # magic, checksum of what follows it, version
_CHECKED_FROM = 16


class Invalidated(msgspec.Struct, frozen=True, array_like=True):
    """All that is known, as it is kept in the file."""

    folder_id: bytes  # segments name it: another folder's know of other invalidations
    serial: int  # of the latest
    scopes: dict[bytes, tuple[StoredScope, int]]  # by their own bytes; the latest of each

    def floor(self, namespace: StoredNamespace) -> int:
        """Return the serial below which a namespace's records are dead."""
        return floor_of(self.scopes.values(), namespace)


def floor_of(scopes: Iterable[tuple[StoredScope, int]], namespace: StoredNamespace) -> int:
    """Return the latest serial of those scopes that hold a namespace."""
    return max((serial for scope, serial in scopes if scope.holds(namespace)), default=0)


def read_scopes(folder: Path) -> Invalidated | None:
    """Return what stands in the folder's file; None: there is no file.

    Raises:
        RefusedError: it is damaged, or another version's.
    """
    try:
        data = (folder / SCOPES).read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _TOP.size:
        raise RefusedError("cut_short")
    magic, check, version = _TOP.unpack_from(data)
    if magic != _MAGIC or check != xxhash.xxh3_64_intdigest(data[_CHECKED_FROM:]):
        raise RefusedError("checksum")
    if version != FORMAT_VERSION:
        raise RefusedError("version")
    try:
        return msgspec.msgpack.decode(data[_TOP.size :], type=Invalidated)
    except msgspec.MsgspecError as error:
        raise RefusedError("version") from error


class Scopes:
    """Tells which records are dead. Each has the serial of the latest invalidation before it.

    The file is written anew as a whole each time: it is small, and so there is no end of it that
    could be lost unseen.
    """

    def __init__(self, folder: DiskFolder, known: Invalidated | None) -> None:
        """Go on from what `read_scopes` gave; None: nothing is known, all segments are strangers'.

        Raises OSError.
        """
        self._folder = folder
        scopes = {} if known is None else known.scopes
        self._state: _State = (scopes, {})  # replaced, never changed: readers are other threads
        self.n_bytes = 0
        self.serial = 0 if known is None else known.serial
        self.folder_id = uuid4().bytes if known is None else known.folder_id
        if known is None:
            self._save()

    @classmethod
    def load(cls, folder: DiskFolder) -> Scopes:
        """Return what is known in a folder.

        Raises:
            ConfigError: another version has written it.
            RefusedError: it is damaged.
        """
        try:
            return cls(folder, read_scopes(folder.path))
        except RefusedError as error:
            if error.reason != "version":
                raise
            reason = f"is of another format than {FORMAT_VERSION}; give another folder or empty it"
            raise ConfigError("disk", str(folder.path), reason) from error

    def floor(self, namespace: StoredNamespace) -> int:
        """Return the serial below which the namespace's records are dead. From any thread."""
        scopes, floors = self._state
        floor = floors.get(namespace)
        if floor is None:
            floor = floors[namespace] = floor_of(scopes.values(), namespace)
        return floor

    def bump(self, scope: StoredScope) -> None:
        """Make dead what the scope holds now; it stays so after a power cut. Raises OSError."""
        self.serial += 1
        older = {} if scope == StoredScope() else self._state[0]
        self._state = ({**older, _name(scope): (scope, self.serial)}, {})
        try:
            self._save()
        except OSError:
            self._folder.remove(SCOPES)  # then no record of this folder is accounted for
            self._folder.sync()

    def forget(self, stamps: Iterable[int]) -> None:
        """Forget what no record with one of these stamps is dead by. Raises OSError."""
        oldest = min(stamps, default=self.serial)
        scopes, _ = self._state
        kept = {name: pair for name, pair in scopes.items() if pair[1] > oldest}
        if len(kept) < len(scopes):
            self._state = (kept, {})
            self._save()

    def _save(self) -> None:
        known = Invalidated(self.folder_id, self.serial, self._state[0])
        data = FORMAT_VERSION.to_bytes(2, "little") + msgspec.msgpack.encode(known)
        data = _MAGIC + xxhash.xxh3_64_intdigest(data).to_bytes(8, "little") + data
        self._folder.replace(SCOPES, data, durably=True)
        self.n_bytes = len(data)


def _name(scope: StoredScope) -> bytes:
    return msgspec.msgpack.encode(scope)
