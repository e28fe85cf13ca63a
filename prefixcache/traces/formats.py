"""Readers of the trace formats, one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from prefixcache.errors import TraceError
from prefixcache.traces.records import TraceRequest, merged

_MOONCAKE_BLOCK_TOKENS = 512
_SUBAGENT = "subagent"  # the type of an entry of a WEKA trace that is only there for its requests

_Count = Annotated[int, Meta(ge=0)]
_Row = TypeVar("_Row", bound=msgspec.Struct)


class _MooncakeRow(msgspec.Struct):
    timestamp: Annotated[float, Meta(ge=0)]  # milliseconds
    input_length: _Count
    output_length: _Count
    hash_ids: tuple[_Count, ...]


class _WekaEntry(msgspec.Struct):
    t: Annotated[float, Meta(ge=0)]  # seconds from the start of the conversation or subagent
    type: str = ""
    in_: _Count | None = msgspec.field(name="in", default=None)  # None: a subagent
    out: _Count = 0
    hash_ids: tuple[_Count, ...] = ()
    requests: list[_WekaEntry] = msgspec.field(default_factory=list)


class _WekaConversation(msgspec.Struct):
    block_size: Annotated[int, Meta(ge=1)]
    requests: list[_WekaEntry]


def read_trace(path: Path) -> list[TraceRequest]:
    """Return a trace's requests by arrival.

    Args:
        path: `.jsonl` is a Mooncake trace; `.json` is a WEKA conversation; a folder is all of
            its WEKA conversations, started at one moment.

    Raises:
        TraceError: it is none of them, cannot be read or is empty, or a row in it is malformed.
    """
    if path.is_dir():
        requests = merged([list(read_weka(file)) for file in sorted(path.glob("*.json"))])
    elif path.suffix in _READERS:
        found = _READERS[path.suffix](path)
        requests = sorted(found, key=lambda request: request.timestamp_seconds)
    else:
        raise TraceError(path, "the file", f"its name must end in {' or '.join(_READERS)}")
    if not requests:
        raise TraceError(path, "all of it", "holds no requests")
    if len({request.block_tokens for request in requests}) > 1:
        raise TraceError(path, "the folder", "its conversations differ in block_size")
    return requests


def read_mooncake(path: Path) -> Iterator[TraceRequest]:
    """Yield the requests of a Mooncake trace, a JSON object a line, in its order.

    Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces.

    Raises:
        TraceError: the file cannot be read, or a row is malformed; it names the line.
    """
    decoder = msgspec.json.Decoder(_MooncakeRow)
    for number, line in enumerate(_bytes_of(path).splitlines(), start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        row = _decoded(decoder, line, path, place)
        n_blocks = -(-row.input_length // _MOONCAKE_BLOCK_TOKENS)
        _require_blocks(path, place, row.hash_ids, n_blocks)
        yield TraceRequest(
            row.timestamp / 1000,
            row.input_length,
            row.output_length,
            row.hash_ids,
            _MOONCAKE_BLOCK_TOKENS,
        )


def read_weka(path: Path) -> Iterator[TraceRequest]:
    """Yield the requests of a WEKA conversation, those of its subagents among them, by arrival.

    Source: github.com/callanjfox/kv-cache-tester, `flatten_requests` of trace_replay_tester.py:
    the times of a subagent's requests count from its own start; a file's hash ids are one scope.

    Raises:
        TraceError: the file cannot be read, or is malformed; it names the request.
    """
    decoder = msgspec.json.Decoder(_WekaConversation)
    conversation = _decoded(decoder, _bytes_of(path), path, "the file")
    size = conversation.block_size
    found = [
        _weka_request(path, place, entry, start + entry.t, size)
        for place, start, entry in _entries(conversation.requests, "request ", 0.0)
    ]
    yield from sorted(found, key=lambda request: request.timestamp_seconds)


def _entries(
    entries: list[_WekaEntry], above: str, start: float
) -> Iterator[tuple[str, float, _WekaEntry]]:
    """Yield each request, with its place in the file and the time that its own counts from."""
    for number, entry in enumerate(entries, start=1):
        place = f"{above}{number}"
        if entry.type == _SUBAGENT:
            yield from _entries(entry.requests, f"{place}.", start + entry.t)
        else:
            yield place, start, entry


def _weka_request(
    path: Path, place: str, entry: _WekaEntry, timestamp_seconds: float, block_tokens: int
) -> TraceRequest:
    if entry.in_ is None:
        raise TraceError(path, place, "it lacks `in`")
    _require_blocks(path, place, entry.hash_ids, entry.in_ // block_tokens)
    return TraceRequest(timestamp_seconds, entry.in_, entry.out, entry.hash_ids, block_tokens)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TraceError(path, "the file", error.strerror or "cannot be read") from error


def _decoded(decoder: msgspec.json.Decoder[_Row], data: bytes, path: Path, place: str) -> _Row:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(path, place, str(error)) from error


def _require_blocks(path: Path, place: str, hash_ids: tuple[int, ...], n_blocks: int) -> None:
    if len(hash_ids) != n_blocks:
        reason = f"its input has {n_blocks} blocks, but {len(hash_ids)} hash ids are given"
        raise TraceError(path, place, reason)


_READERS: Mapping[str, Callable[[Path], Iterator[TraceRequest]]] = MappingProxyType(
    {".jsonl": read_mooncake, ".json": read_weka}
)
