"""The folder of a disk tier: who may use it, and what lies in it."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prefixcache.errors import ConfigError, TierError

SCOPES = "scopes"
_SEGMENT = ".segment"
_SIDECAR = ".index"
_LOCK = "lock"
_UNFINISHED = ".new"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn what the system refuses into a TierError that says what to do."""
    try:
        yield
    except OSError as error:
        raise TierError(
            f"the disk tier cannot use {folder}: {error.strerror or error}."
            " See that there is room and that this user may write there."
        ) from error


def private_fd(path: Path, flags: int) -> int:
    """Open a file that nobody else may read; it is made if `flags` say so."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def write_all(fd: int, data: bytes, offset: int = 0) -> None:
    """Write all of it, from `offset` on."""
    view = memoryview(data)
    while view:
        n_bytes = os.pwrite(fd, view, offset)
        view = view[n_bytes:]
        offset += n_bytes


class DiskFolder:
    """A folder that one process at a time may change."""

    def __init__(self, path: Path) -> None:
        """Make it if it is not there, and claim it.

        Raises:
            ConfigError: it is no folder, or others may write to it.
            TierError: another process has it, or the system refuses it.
        """
        self.path = path
        if path.exists() and not path.is_dir():
            raise ConfigError("disk", str(path), "is no folder; name a folder")
        with disk_errors(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.stat().st_mode & _OTHERS_WRITE:
                raise ConfigError("disk", str(path), "others may write to it: chmod go-w it")
            self._lock_fd = private_fd(path / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_fd)
            raise TierError(
                f"{path} is in use by another process. Stop it, or give each server a folder"
                " of its own."
            ) from error

    def close(self) -> None:
        """Let others have it."""
        os.close(self._lock_fd)

    def replace(self, name: str, data: bytes, *, durably: bool = False) -> None:
        """Give the file `name` this content, all of it or none.

        `durably`: it holds after a power cut, too, when this returns.
        """
        unfinished = self.path / (name + _UNFINISHED)
        fd = private_fd(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(fd, data)
            if durably:
                os.fsync(fd)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        unfinished.replace(self.path / name)
        if durably:
            self.sync()

    def remove(self, name: str) -> None:
        """Remove the file `name` if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def size(self, name: str) -> int:
        """Return the bytes of the file `name`; 0: it is not there."""
        path = self.path / name
        return path.stat().st_size if path.exists() else 0

    def sync(self) -> None:
        """Have the names of the files on the disk before this returns."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove_unfinished(self) -> None:
        """Remove what a killed process had not finished to write."""
        for path in self.path.glob(f"*{_UNFINISHED}"):
            path.unlink()


def is_in_use(folder: Path) -> bool:
    """Whether a process has claimed it. Changes nothing. Raises OSError."""
    try:
        fd = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def segment_name(number: int) -> str:
    """Return the name of a segment's file."""
    return f"{number:010}{_SEGMENT}"


def sidecar_name(number: int) -> str:
    """Return the name of the file beside it."""
    return f"{number:010}{_SIDECAR}"


def segment_paths(folder: Path) -> list[tuple[int, Path]]:
    """Return the segments that lie in a folder, oldest first."""
    paths = ((path.stem, path) for path in folder.glob(f"*{_SEGMENT}"))
    return sorted((int(stem), path) for stem, path in paths if stem.isascii() and stem.isdigit())


def used_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder; what goes meanwhile may be missing."""
    n_bytes = 0
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            n_bytes += entry.stat().st_size if entry.is_file() else 0
    return n_bytes
