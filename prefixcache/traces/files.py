"""Trace files: which ones a name means, and their bytes, plain or compressed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from glob import glob
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, TypeVar, cast

from prefixcache.errors import TraceError

_T = TypeVar("_T")

MAX_LINE_BYTES = 64 * 1024 * 1024
HEAD_BYTES = 64 * 1024

_ENDINGS = frozenset({".jsonl", ".json", ".csv"})
_COMPRESSED = frozenset({".gz", ".zst"})
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_MODULES = ("compression.zstd", "backports.zstd")  # Python's own is there from 3.14 on
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINES_PER_REPORT = 256

Progress = Callable[[Path, int], None]  # a file, and how many of its bytes on disk are read


def find_files(name: str) -> tuple[list[Path], list[Path]]:
    """Return the trace files that `name` means, by name, and those in a folder that are none.

    A file is itself; a folder all files below it that end in .jsonl, .json or .csv, compressed
    (.gz, .zst) or not, but hidden ones; anything else is a pattern such as `logs/*.jsonl`.

    Raises:
        TraceError: there is no such file.
    """
    path = Path(name)
    if path.is_dir():
        below = sorted(file for file in path.rglob("*") if file.is_file())
        shown = [file for file in below if not _is_hidden(file.relative_to(path))]
        files = [file for file in shown if _ending(file) in _ENDINGS]
        if not files:
            raise TraceError(path, "the folder", "no file in it ends in .jsonl, .json or .csv")
        return files, [file for file in shown if _ending(file) not in _ENDINGS]
    files = [path] if path.exists() else sorted(map(Path, glob(name, recursive=True)))
    if not files:
        raise TraceError(path, "the file", "there is no such file or folder")
    return files, []


def read_head(path: Path) -> bytes:
    """Return the first bytes of a file, unpacked, at most `HEAD_BYTES`.

    Raises:
        TraceError: it cannot be read.
    """
    with _opened(path) as (_, file):
        return _guarded(path, "the file", lambda: file.read(HEAD_BYTES)).removeprefix(
            _BYTE_ORDER_MARK
        )


def read_lines(path: Path, progress: Progress | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, each after its number, from 1 on.

    Raises:
        TraceError: it cannot be read or unpacked, or a line has over `MAX_LINE_BYTES`.
    """
    with _opened(path) as (raw, file):
        number = 0
        while True:
            number += 1
            line = _guarded(path, f"line {number}", lambda: file.readline(MAX_LINE_BYTES))
            if not line:
                break
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                raise TraceError(path, f"line {number}", f"is longer than {MAX_LINE_BYTES} bytes")
            if number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if progress is not None and number % _LINES_PER_REPORT == 0:
                progress(path, raw.tell())
            if not line.isspace():
                yield number, line
    if progress is not None:
        progress(path, path.stat().st_size)


def read_chunks(
    path: Path, progress: Progress | None = None, *, chunk_bytes: int = HEAD_BYTES
) -> Iterator[bytes]:
    """Yield a file's bytes, unpacked, in order. Raises TraceError: it cannot be read."""
    with _opened(path) as (raw, file):
        is_first = True
        while chunk := _guarded(path, "the file", lambda: file.read(chunk_bytes)):
            yield chunk.removeprefix(_BYTE_ORDER_MARK) if is_first else chunk
            is_first = False
            if progress is not None:
                progress(path, raw.tell())


class _opened:  # noqa: N801 (a context manager, used as a function)
    """A file on disk, and what it holds unpacked."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> tuple[BinaryIO, BinaryIO]:
        self._raw = _guarded(self._path, "the file", lambda: self._path.open("rb"))
        try:
            self._file = _guarded(self._path, "the file", lambda: _unpacked(self._path, self._raw))
        except TraceError:
            self._raw.close()
            raise
        return self._raw, self._file

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._raw.close()


def _unpacked(path: Path, raw: BinaryIO) -> BinaryIO:
    magic = raw.read(len(_ZSTD_MAGIC))
    raw.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        return cast("BinaryIO", gzip.GzipFile(fileobj=raw, mode="rb"))
    if magic == _ZSTD_MAGIC:
        module = _zstd()
        if module is None:
            reason = "is compressed with zstd; pip install 'prefixcache[zstd]', or unpack it"
            raise TraceError(path, "the file", reason)
        return cast("BinaryIO", module.ZstdFile(raw, "rb"))
    return raw


def _zstd() -> ModuleType | None:
    for name in _ZSTD_MODULES:
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


def _guarded(path: Path, place: str, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except OSError as error:
        raise TraceError(path, place, error.strerror or str(error)) from error
    except (EOFError, zlib.error) as error:
        raise TraceError(path, place, f"the compressed data is damaged: {error}") from error
    except Exception as error:
        if type(error).__name__ == "ZstdError":  # of a module that may not be there
            raise TraceError(path, place, f"the compressed data is damaged: {error}") from error
        raise


def _ending(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
