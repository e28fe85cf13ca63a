"""Requests as lines of a trace in Mooncake's form, with sessions."""

from __future__ import annotations

import msgspec

from prefixcache.traces.records import TraceRequest


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    timestamp: int  # ms
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    session_id: str | None = None


def mooncake_line(request: TraceRequest) -> bytes:
    """Return a request as a line, its end included. The size of its blocks is not in it."""
    line = _Line(
        timestamp=round(request.timestamp_seconds * 1000),
        input_length=request.input_tokens,
        output_length=request.output_tokens,
        hash_ids=request.hash_ids,
        session_id=request.conversation,
    )
    return msgspec.json.encode(line) + b"\n"
