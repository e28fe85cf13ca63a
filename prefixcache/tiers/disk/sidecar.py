"""What a finished segment holds, beside it: so that a start need not look at each record."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import xxhash

from prefixcache.tiers.keys import StoredNamespace
from prefixcache.tiers.refusals import RefusedError

_CHECK_BYTES = 8
ENTRY_BYTES = 56  # no entry of the file takes more,
NAMESPACE_BYTES = 128  # no namespace,
FIXED_BYTES = 64  # and nor does the rest


class Entry:
    """Where a record is. Compared by identity."""

    __slots__ = ("is_used", "key", "n_bytes", "namespace", "offset", "segment_number", "stamp")

    def __init__(
        self,
        key: bytes,
        namespace: StoredNamespace,
        stamp: int,
        segment_number: int,
        offset: int,
        n_bytes: int,
    ) -> None:
        self.key, self.namespace, self.stamp = key, namespace, stamp
        self.segment_number, self.offset, self.n_bytes = segment_number, offset, n_bytes
        self.is_used = False  # since it was written or moved


class _Sidecar(msgspec.Struct, frozen=True, array_like=True):
    number: int
    segment_bytes: int
    namespaces: list[StoredNamespace]
    rows: list[tuple[bytes, int, int, int, int]]  # key, namespace's index, stamp, offset, n_bytes


def written(number: int, segment_bytes: int, entries: Iterable[Entry]) -> bytes:
    """Return the file of a segment."""
    places: dict[StoredNamespace, int] = {}
    rows = [
        (
            entry.key,
            places.setdefault(entry.namespace, len(places)),
            entry.stamp,
            entry.offset,
            entry.n_bytes,
        )
        for entry in entries
    ]
    body = msgspec.msgpack.encode(_Sidecar(number, segment_bytes, list(places), rows))
    return xxhash.xxh3_64_digest(body) + body


def read_back(data: bytes, number: int, segment_bytes: int) -> list[Entry]:
    """Return what `written` was given.

    Raises:
        RefusedError: it is damaged, or not of this segment as it is now.
    """
    check, body = data[:_CHECK_BYTES], data[_CHECK_BYTES:]
    if xxhash.xxh3_64_digest(body) != check:
        raise RefusedError("checksum")
    try:
        sidecar = msgspec.msgpack.decode(body, type=_Sidecar)
    except msgspec.MsgspecError as error:
        raise RefusedError("version") from error
    if (sidecar.number, sidecar.segment_bytes) != (number, segment_bytes):
        raise RefusedError("other_block")
    return [
        Entry(key, sidecar.namespaces[index], stamp, number, offset, n_bytes)
        for key, index, stamp, offset, n_bytes in sidecar.rows
    ]


def most_bytes(n_entries: int, n_namespaces: int) -> int:
    """Return what the file may take at most."""
    return FIXED_BYTES + n_entries * ENTRY_BYTES + n_namespaces * NAMESPACE_BYTES
