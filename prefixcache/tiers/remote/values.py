"""A record as values of a server: a head, and pieces of payload that are not too large.

head value: bytes of a piece, little-endian (0: the payload stands behind the head) | frame
piece: so many bytes of the payload, the last one fewer
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from prefixcache.index import Packed
from prefixcache.tiers.frames import PREFIX_BYTES, Frame, framed, read_frame, stamp_of
from prefixcache.tiers.records import BlockRecord
from prefixcache.tiers.refusals import RefusedError

_PIECE = struct.Struct("<I")
_MAX_PIECES = 1 << 16
LOOK_BYTES = _PIECE.size + PREFIX_BYTES  # of a head value tell what it was written under


@dataclass(frozen=True, slots=True)
class HeadValue:
    """What a head value says."""

    frame: Frame
    n_pieces: int
    payload: memoryview | None  # None: it is in pieces


@dataclass(frozen=True, slots=True)
class Values:
    """What is to be written of a record."""

    head: bytes
    payload_sum: int
    pieces: Sequence[Packed]


def values_of(record: BlockRecord, stamp: int, max_value_bytes: int) -> Values:
    """Return a record's values, none of them above a size but for its head alone."""
    head, *parts = framed(record, stamp)
    frame = read_frame(head)
    if len(head) + frame.payload_bytes + _PIECE.size <= max_value_bytes:
        return Values(b"".join([_PIECE.pack(0), head, *parts]), frame.payload_sum, ())
    payload = memoryview(b"".join(parts))
    pieces = [payload[at : at + max_value_bytes] for at in range(0, len(payload), max_value_bytes)]
    return Values(_PIECE.pack(max_value_bytes) + head, frame.payload_sum, pieces)


def read_head_value(data: bytes) -> HeadValue:
    """Return what a head value says.

    Raises:
        RefusedError: it is not one that `values_of` has made.
    """
    if len(data) < _PIECE.size:
        raise RefusedError("cut_short")
    (piece_bytes,) = _PIECE.unpack_from(data)
    view = memoryview(data)[_PIECE.size :]
    frame = read_frame(view)
    if not piece_bytes:
        return HeadValue(frame, 0, view[frame.head_bytes :])
    n_pieces = -(-frame.payload_bytes // piece_bytes)
    if n_pieces > _MAX_PIECES or len(view) != frame.head_bytes:
        raise RefusedError("checksum")
    return HeadValue(frame, n_pieces, None)


def stamp_in(beginning: bytes) -> int | None:
    """Return what a head value was written under, by its first LOOK_BYTES; None: unknown."""
    return stamp_of(beginning[_PIECE.size :])
