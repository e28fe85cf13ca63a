"""A JSON array too large to be held: its objects one by one."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from collections.abc import Iterator
from pathlib import Path

from prefixcache.errors import TraceError
from prefixcache.traces.files import HEAD_BYTES, MAX_LINE_BYTES, Progress, read_chunks

_BETWEEN = " \t\r\n,"


def read_array(
    path: Path, progress: Progress | None = None, *, chunk_bytes: int = HEAD_BYTES
) -> Iterator[bytes]:
    """Yield the objects of the JSON array that a file is.

    Raises:
        TraceError: it is no array, does not end, or an object in it is malformed or longer than
            `MAX_LINE_BYTES` characters.

    Cost: memory for the longest object, twice.
    """
    text, wanted, is_open = "", 1, False
    for chunk, is_last in _texts(path, progress, chunk_bytes):
        text += chunk
        if len(text) < wanted and not is_last:
            continue  # an object that did not end: look again when there is twice as much
        if not is_open:
            text = _opened(path, text.lstrip())
            is_open = True
        text = text.lstrip(_BETWEEN)
        while text and not text.startswith("]") and (found := _first(text)) is not None:
            yield found.encode(errors="surrogatepass")
            text = text[len(found) :].lstrip(_BETWEEN)
        if text.startswith("]"):
            return
        if len(text) > MAX_LINE_BYTES:
            raise TraceError(path, "the file", "an object in it is malformed or too long")
        wanted = 2 * len(text)
    raise TraceError(path, "the file", "the JSON array in it is malformed or does not end")


def _opened(path: Path, text: str) -> str:
    if not text.startswith("["):
        raise TraceError(path, "the file", "is no JSON array")
    return text[1:]


def _first(text: str) -> str | None:
    """Return the value that a text begins with, None where it does not end in it."""
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return text[:end]


def _texts(path: Path, progress: Progress | None, chunk_bytes: int) -> Iterator[tuple[str, bool]]:
    """Yield a file's text in parts, and whether each is the last one."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    for chunk in read_chunks(path, progress, chunk_bytes=chunk_bytes):
        yield decoder.decode(chunk), False
    yield decoder.decode(b"", final=True), True
