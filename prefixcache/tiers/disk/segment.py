"""One file of many records, written from its beginning to its end and never changed.

0  magic "PCsegmnt" | 8  version | 10  zero | 12  id of the folder | 28  serial at its start
36 checksum of the above
44 frames, one after the other
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from prefixcache.tiers.disk.folder import private_fd, write_all
from prefixcache.tiers.frames import (
    FORMAT_VERSION,
    MAGIC,
    PREFIX_BYTES,
    Frame,
    head_size,
    read_frame,
)
from prefixcache.tiers.refusals import RefusedError

_MAGIC = b"PCsegmnt"
_TOP = struct.Struct("<8sHH16sQ")
_CHECK = struct.Struct("<Q")
TOP_BYTES = _TOP.size + _CHECK.size
_HEAD_GUESS_BYTES = 1024  # most heads are shorter
_SEARCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """A frame's head, and where in the file it begins."""

    offset: int
    frame: Frame


class Segment:
    """The file, open. Frames are added by one writer; whoever opened it closes it."""

    def __init__(self, number: int, path: Path, fd: int, n_bytes: int) -> None:
        self.number, self.path, self.n_bytes = number, path, n_bytes
        self._fd = fd

    @classmethod
    def create(cls, number: int, path: Path, folder_id: bytes, serial: int) -> Segment:
        """Make the file. Raises OSError, and leaves none then."""
        fd = private_fd(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        top = _TOP.pack(_MAGIC, FORMAT_VERSION, 0, folder_id, serial)
        try:
            write_all(fd, top + _CHECK.pack(xxhash.xxh3_64_intdigest(top)))
        except OSError:
            os.close(fd)
            path.unlink()
            raise
        return cls(number, path, fd, TOP_BYTES)

    @classmethod
    def open(
        cls, number: int, path: Path, folder_id: bytes, serial: int, *, writable: bool = True
    ) -> Segment:
        """Open a file that is there.

        Raises:
            OSError: the system refuses it.
            RefusedError: it is of another version, damaged, or was written when more was
                invalidated than is known by now, or in another folder.
        """
        fd = private_fd(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            _check_top(os.pread(fd, TOP_BYTES, 0), folder_id, serial)
            return cls(number, path, fd, os.fstat(fd).st_size)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def append(self, data: bytes) -> int:
        """Add frames; returns where they begin.

        Raises OSError: none of them is there then.
        """
        offset = self.n_bytes
        try:
            write_all(self._fd, data, offset)
        except OSError:
            with suppress(OSError):  # what is left is written over, or cut off at a start
                os.ftruncate(self._fd, offset)
            raise
        self.n_bytes += len(data)
        return offset

    def cut(self, n_bytes: int) -> None:
        """Cut off what comes behind so many bytes. Raises OSError."""
        os.ftruncate(self._fd, n_bytes)
        self.n_bytes = n_bytes

    def read(self, offset: int, sizes: Sequence[int]) -> list[memoryview]:
        """Return consecutive pieces, views of one buffer; shorter at the file's end."""
        buffer = _buffer(sum(sizes), offset)
        left = os.preadv(self._fd, [buffer], offset) if sizes else 0
        pieces = []
        at = 0
        for size in sizes:
            pieces.append(buffer[at : at + max(min(size, left - at), 0)])
            at += size
        return pieces

    def scan(self) -> Iterator[Found | RefusedError]:
        """Yield each frame's head in order, and a refusal for each stretch that is none.

        Payloads are not read, but each has all its bytes. Cost: one small read a frame.
        """
        at = TOP_BYTES
        while at < self.n_bytes:
            try:
                frame = self.frame_at(at)
            except RefusedError as error:
                yield error
                at = self._next_frame(at + 1)
            else:
                yield Found(at, frame)
                at += frame.n_bytes

    def frame_at(self, offset: int) -> Frame:
        """Return the head that begins there. Raises RefusedError: none does, or it is cut short."""
        data = os.pread(self._fd, _HEAD_GUESS_BYTES, offset)
        size = head_size(data)
        if size > len(data):
            data = os.pread(self._fd, size, offset)
        frame = read_frame(data)
        if offset + frame.n_bytes > self.n_bytes:
            raise RefusedError("cut_short")
        return frame

    def _next_frame(self, at: int) -> int:
        """Return where the next whole frame begins; the end of the file if none does."""
        while at + PREFIX_BYTES <= self.n_bytes:
            data = os.pread(self._fd, _SEARCH_BYTES, at)
            place = data.find(MAGIC)
            if place < 0:
                at += max(1, len(data) - len(MAGIC) + 1)
                continue
            try:
                self.frame_at(at + place)
            except RefusedError:
                at += place + 1
            else:
                return at + place
        return self.n_bytes


def _buffer(n_bytes: int, offset: int) -> memoryview:
    """Return new memory, not filled, that lies in its page as the file does from `offset` on.

    Some processors copy four times slower where the target's place in a page is a little beyond
    the source's.
    """
    room = np.empty(n_bytes + mmap.PAGESIZE, dtype=np.uint8)
    at = (offset - room.ctypes.data) % mmap.PAGESIZE
    return room[at : at + n_bytes].data


def _check_top(data: bytes, folder_id: bytes, serial: int) -> None:
    if any(data) and not data.startswith(_MAGIC[: len(data)]):
        raise RefusedError("version")
    if len(data) < TOP_BYTES or not any(data):  # killed, or zeros after a power cut
        raise RefusedError("cut_short")
    _, version, _, its_folder, its_serial = _TOP.unpack_from(data)
    if xxhash.xxh3_64_intdigest(data[: _TOP.size]) != _CHECK.unpack_from(data, _TOP.size)[0]:
        raise RefusedError("checksum")
    if version != FORMAT_VERSION:
        raise RefusedError("version")
    if its_folder != folder_id or its_serial > serial:
        raise RefusedError("unaccounted")
