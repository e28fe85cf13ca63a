"""Traces of block ids, one request a line: Mooncake and Qwen-Bailian."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from prefixcache.traces.formats.rows import (
    Count,
    HashId,
    blocks_of,
    own_ids,
    read_rows,
    require_blocks,
)
from prefixcache.traces.reading import Reading, RowError
from prefixcache.traces.records import TraceRequest

_MOONCAKE_BLOCK_TOKENS = 512
_QWEN_BLOCK_TOKENS = 16
_NO_PARENT = -1  # of a Qwen-Bailian row that begins a chat


class _MooncakeRow(msgspec.Struct):
    input_length: Count
    timestamp: float | msgspec.UnsetType = msgspec.UNSET
    output_length: Count | None = None
    hash_ids: tuple[HashId, ...] | None = None
    session_id: str | int | None = None


class _QwenRow(msgspec.Struct):
    input_length: Count
    timestamp: float | msgspec.UnsetType = msgspec.UNSET
    output_length: Count | None = None
    hash_ids: tuple[HashId, ...] | None = None
    chat_id: int | None = None
    parent_chat_id: int = _NO_PARENT


def read_mooncake(path: Path, reading: Reading) -> Iterator[TraceRequest]:
    """Yield the requests of a Mooncake trace.

    Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces.
    """
    block_tokens = reading.options.block_tokens or _MOONCAKE_BLOCK_TOKENS

    def convert(row: _MooncakeRow, reading: Reading) -> TraceRequest:
        session = None if row.session_id is None else str(row.session_id)
        return _request(row, reading, block_tokens, session)

    return read_rows(path, reading, _MooncakeRow, convert)


def read_qwen(path: Path, reading: Reading) -> Iterator[TraceRequest]:
    """Yield the requests of a Qwen-Bailian trace.

    A chat's requests are found by their parents: a row without one begins a conversation. One
    whose parent is not in the trace begins one as well. Each chat id is remembered.

    Source: github.com/alibaba-edu/qwen-bailian-usagetraces-anon, README.
    """
    block_tokens = reading.options.block_tokens or _QWEN_BLOCK_TOKENS
    conversations: dict[int, str] = {}

    def convert(row: _QwenRow, reading: Reading) -> TraceRequest:
        conversation = None
        if row.chat_id is not None:
            conversation = conversations.get(row.parent_chat_id, str(row.chat_id))
        request = _request(row, reading, block_tokens, conversation)
        if row.chat_id is not None and conversation is not None:
            conversations[row.chat_id] = conversation
        return request

    return read_rows(path, reading, _QwenRow, convert)


def _request(
    row: _MooncakeRow | _QwenRow, reading: Reading, block_tokens: int, conversation: str | None
) -> TraceRequest:
    """Return a row's request. Its input may end in a part of a block, which has an id too."""
    ids = row.hash_ids
    if ids is not None:
        _require_ids(len(ids), row, block_tokens)
    timestamp = None if row.timestamp is msgspec.UNSET else row.timestamp
    assert not isinstance(timestamp, msgspec.UnsetType)
    seconds = reading.seconds(timestamp)
    if ids is None:
        reading.report.defaults["hash_ids"] += 1
        ids = reading.unshared(blocks_of(row.input_length, block_tokens, has_partial=True))
    else:
        ids = own_ids(ids)
    n_output = reading.count(row.output_length, "output_length")
    return TraceRequest(seconds, row.input_length, n_output, ids, block_tokens, conversation)


def _require_ids(n_ids: int, row: _MooncakeRow | _QwenRow, block_tokens: int) -> None:
    """Raise RowError unless the ids fit the input; Qwen-Bailian may leave a partial one out."""
    try:
        require_blocks(n_ids, row.input_length, block_tokens, has_partial=True)
    except RowError:
        if not isinstance(row, _QwenRow) or n_ids != row.input_length // block_tokens:
            raise
