"""A record as bytes that describe and check themselves, the same on a disk and on a server.

    0  magic "PCkv" | 4  version | 6  zero | 8  bytes of the head | 12  bytes of the payload
    20 stamp | 28 checksum of the payload | 36 checksum of the above and the head
    44 head: whose KV it is, its key, its token ids, the sizes of its parts (MessagePack)
    .. payload: the parts, one after the other

Numbers are little-endian; checksums are XXH3 of 64 bits. The stamp says what was not yet
invalidated when the record was written; a tier gives it its meaning.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec
import xxhash

from prefixcache.index import Packed
from prefixcache.tiers.keys import StoredNamespace
from prefixcache.tiers.records import BlockRecord
from prefixcache.tiers.refusals import RefusedError

MAGIC = b"PCkv"
FORMAT_VERSION = 1

_PREFIX = struct.Struct("<4sHHIQQQ")
_CHECK = struct.Struct("<Q")
PREFIX_BYTES = _PREFIX.size + _CHECK.size
MAX_HEAD_BYTES = 1 << 24  # no block has so many token ids


class Head(msgspec.Struct, frozen=True, array_like=True):
    """What the payload is the KV of."""

    key: bytes
    parent_key: bytes
    namespace: StoredNamespace
    token_ids: bytes
    part_bytes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands before a payload, checked."""

    head: Head
    stamp: int
    head_bytes: int  # where the payload begins
    payload_bytes: int
    payload_sum: int

    @property
    def n_bytes(self) -> int:
        """With the payload."""
        return self.head_bytes + self.payload_bytes


def framed(record: BlockRecord, stamp: int) -> list[Packed]:
    """Return the pieces of a record's bytes: what stands before the payload, and the parts."""
    parts = [part for part in record.parts if part is not None]
    sizes = tuple(None if part is None else len(part) for part in record.parts)
    head = msgspec.msgpack.encode(
        Head(record.key, record.parent_key, record.namespace, record.token_ids, sizes)
    )
    check = xxhash.xxh3_64()
    for part in parts:
        check.update(part)
    prefix = _PREFIX.pack(
        MAGIC, FORMAT_VERSION, 0, len(head), record.n_bytes, stamp, check.intdigest()
    )
    check_of_head = _CHECK.pack(xxhash.xxh3_64_intdigest(prefix + head))
    return [prefix + check_of_head + head, *parts]


def head_size(data: Packed) -> int:
    """Return how many bytes stand before the payload, going by the first PREFIX_BYTES.

    Raises:
        RefusedError: they are no frame of this version. That they are whole is not checked.
    """
    if len(data) < PREFIX_BYTES:
        raise RefusedError("cut_short")
    magic, version, _, head_bytes, *_ = _PREFIX.unpack_from(data)
    if (magic, version) != (MAGIC, FORMAT_VERSION):
        raise RefusedError("version")
    if head_bytes > MAX_HEAD_BYTES:
        raise RefusedError("checksum")
    return PREFIX_BYTES + int(head_bytes)


def stamp_of(data: Packed) -> int | None:
    """Return the stamp by the first PREFIX_BYTES; None: they are no frame of this version."""
    try:
        head_size(data)
    except RefusedError:
        return None
    return int(_PREFIX.unpack_from(data)[5])


def read_frame(data: Packed) -> Frame:
    """Return what the bytes before a payload say; more may follow them.

    Raises:
        RefusedError: they are not what `framed` has written.
    """
    size = head_size(data)
    if len(data) < size:
        raise RefusedError("cut_short")
    prefix, head = data[: _PREFIX.size], data[PREFIX_BYTES:size]
    check = xxhash.xxh3_64(prefix)
    check.update(head)
    if check.intdigest() != _CHECK.unpack_from(data, _PREFIX.size)[0]:
        raise RefusedError("checksum")
    *_, payload_bytes, stamp, payload_sum = _PREFIX.unpack(prefix)
    try:
        decoded = msgspec.msgpack.decode(head, type=Head)
    except msgspec.MsgspecError as error:
        raise RefusedError("version") from error
    if sum(part for part in decoded.part_bytes if part is not None) != payload_bytes:
        raise RefusedError("checksum")
    return Frame(decoded, stamp, size, payload_bytes, payload_sum)


def read_record(frame: Frame, payload: memoryview) -> BlockRecord:
    """Return the record; its parts are views of `payload`.

    Raises:
        RefusedError: the payload is not what was written behind this head.
    """
    if len(payload) != frame.payload_bytes:
        raise RefusedError("cut_short")
    if xxhash.xxh3_64_intdigest(payload) != frame.payload_sum:
        raise RefusedError("checksum")
    parts: list[Packed | None] = []
    at = 0
    for size in frame.head.part_bytes:
        parts.append(None if size is None else payload[at : at + size])
        at += size or 0
    head = frame.head
    return BlockRecord(head.key, head.parent_key, head.namespace, head.token_ids, tuple(parts))
