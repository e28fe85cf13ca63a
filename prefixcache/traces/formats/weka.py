"""WEKA conversation files: one conversation each, its subagents' requests inside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from prefixcache.errors import TraceError
from prefixcache.traces.files import read_chunks
from prefixcache.traces.formats.rows import (
    Count,
    HashId,
    blocks_of,
    decode,
    duration,
    own_ids,
    require_blocks,
)
from prefixcache.traces.reading import Reading, RowError
from prefixcache.traces.records import TraceRequest

_SUBAGENT = "subagent"  # the type of an entry that is only there for its requests
_MOST_LEVELS = 50  # of subagents in subagents


class _Entry(msgspec.Struct):
    t: float  # seconds from the start of the conversation or subagent
    type: str = ""
    model: str | None = None
    in_: Count | None = msgspec.field(name="in", default=None)  # None: a subagent
    out: Count | None = None
    api_time: object = None  # seconds, where it was measured
    hash_ids: tuple[HashId, ...] | None = None
    requests: list[msgspec.Raw] = msgspec.field(default_factory=list)


class _Conversation(msgspec.Struct):
    block_size: Annotated[int, Meta(ge=1)]
    requests: list[msgspec.Raw]
    id: str | None = None


class _Placed(NamedTuple):
    place: str  # numbers from 1 on, one per level
    starts_at: float  # what its time counts from
    entry: _Entry


def read_weka(path: Path, reading: Reading) -> Iterator[TraceRequest]:
    """Yield the requests of a WEKA conversation, those of its subagents among them, by arrival.

    The file is read as a whole, for its requests are nested and out of order.

    Source: github.com/callanjfox/kv-cache-tester, `flatten_requests` of trace_replay_tester.py:
    the times of a subagent's requests count from its own start; a file's hash ids are one scope.

    Raises:
        TraceError: the file is no such conversation.
    """
    try:
        data = b"".join(read_chunks(path, reading.progress))
        conversation = decode(msgspec.json.Decoder(_Conversation), data)
    except RowError as error:
        raise TraceError(path, "the file", str(error)) from error
    size = reading.options.block_tokens or conversation.block_size
    name = conversation.id or path.name
    found = []
    for placed in _entries(path, conversation.requests, reading):
        try:
            found.append(_request(placed, reading, size, name))
        except RowError as error:
            reading.skip(path, placed.place, str(error))
            continue
        reading.report.rows_used += 1
    yield from sorted(found, key=lambda request: request.timestamp_seconds)


def _entries(
    path: Path, raws: list[msgspec.Raw], reading: Reading, above: str = "", starts_at: float = 0.0
) -> Iterator[_Placed]:
    """Yield each request, with its place in the file and the time that its own counts from."""
    decoder = msgspec.json.Decoder(_Entry)
    for number, raw in enumerate(raws, start=1):
        place = f"{above}{number}"
        try:
            entry = decode(decoder, bytes(raw))
        except RowError as error:
            reading.report.rows_read += 1
            reading.skip(path, place, str(error))
            continue
        if entry.type == _SUBAGENT and place.count(".") >= _MOST_LEVELS:
            reading.report.rows_read += 1
            reading.skip(path, place, f"subagents are nested over {_MOST_LEVELS} deep")
        elif entry.type == _SUBAGENT:
            yield from _entries(path, entry.requests, reading, f"{place}.", starts_at + entry.t)
        else:
            reading.report.rows_read += 1
            yield _Placed(place, starts_at, entry)


def _request(placed: _Placed, reading: Reading, block_tokens: int, name: str) -> TraceRequest:
    entry = placed.entry
    if entry.in_ is None:
        raise RowError("it lacks `in`")
    ids = entry.hash_ids
    if ids is None:
        reading.report.defaults["hash_ids"] += 1
        ids = reading.unshared(blocks_of(entry.in_, block_tokens, has_partial=False))
    else:
        ids = own_ids(ids)
    require_blocks(len(ids), entry.in_, block_tokens, has_partial=False)
    seconds = reading.seconds(placed.starts_at + entry.t)
    n_output = reading.count(entry.out, "out")
    return TraceRequest(
        seconds,
        entry.in_,
        n_output,
        ids,
        block_tokens,
        conversation=name,
        model=entry.model,
        duration_seconds=duration(entry.api_time),
    )
