"""A gateway's own recordings: which prefixes came when, and never what they say.

The first line is a header, each other line a request:

    {"format": "prefixcache-recording", "version": 1, "block_tokens": 16, "key_id": "5be1..."}
    {"timestamp": 1767225600.25, "tenant": "a9f3...", "model": "tiny", "input_length": 70,
     "output_length": 12, "cached_tokens": 64, "hash_ids": [6122, 991, 37, 8]}

Ids and tenants are digests with a secret key (`texts.BlockDigests`). Recordings with one key go
together; who has the key can tell whether a text that he knows was sent, nobody else can.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from prefixcache.errors import ConfigError, TraceError
from prefixcache.index import TOKEN_BYTES, Packed
from prefixcache.traces.files import read_lines
from prefixcache.traces.formats.rows import Count, HashId, decode, require_blocks
from prefixcache.traces.reading import Reading, RowError
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.texts import BlockDigests

RECORDING = "prefixcache-recording"
VERSION = 1
MIN_KEY_BYTES = 16
MAX_KEY_BYTES = 64

_TENANT_BYTES = 8


class _Header(msgspec.Struct):
    format: str
    version: int
    block_tokens: int
    key_id: str


class _Row(msgspec.Struct, kw_only=True):
    timestamp: float  # seconds since 1970
    tenant: str
    model: str
    input_length: Count
    output_length: Count
    cached_tokens: Count
    hash_ids: tuple[HashId, ...]


class TraceWriter:
    """Writes a recording, a line for each request that has ended.

    The caller owns the file and makes one call at a time. What is written is in the file's own
    buffer until that is flushed.
    """

    def __init__(self, file: BinaryIO, *, key: bytes, block_tokens: int = 16) -> None:
        """Write the header.

        Args:
            file: empty, or a recording to go on with.
            key: secret and random; the same one makes recordings comparable.

        Raises:
            ConfigError: the key is too short or too long, or a block has no token.
        """
        if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
            reason = f"must have {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes"
            raise ConfigError("key", f"{len(key)} bytes", reason)
        if block_tokens < 1:
            raise ConfigError("block_tokens", block_tokens, "must be at least 1")
        self._file = file
        self._digests = BlockDigests(block_tokens, key)
        self._encoder = msgspec.json.Encoder()
        key_id = self._digests.digest(RECORDING).hex()
        self._write(_Header(RECORDING, VERSION, block_tokens, key_id))

    def write(
        self,
        *,
        timestamp_seconds: float,
        tenant: str,
        model: str,
        prompt: Packed,
        output_tokens: int,
        cached_tokens: int,
    ) -> None:
        """Record one request.

        Args:
            timestamp_seconds: of its arrival, since 1970.
            tenant: kept as a digest. Prompts of different tenants have the same ids where they
                are the same, so that a replay can tell what sharing would bring.
            model: what has KV of its own: prompts of different models have no id in common.
            prompt: its token ids, packed.

        Cost: about a microsecond a block.
        """
        row = _Row(
            timestamp=timestamp_seconds,
            tenant=self._digests.digest(tenant)[:_TENANT_BYTES].hex(),
            model=model,
            input_length=len(prompt) // TOKEN_BYTES,
            output_length=output_tokens,
            cached_tokens=cached_tokens,
            hash_ids=self._digests.ids(prompt, scope=model),
        )
        self._write(row)

    def _write(self, line: _Header | _Row) -> None:
        self._file.write(self._encoder.encode(line) + b"\n")


def read_recording(path: Path, reading: Reading) -> Iterator[TraceRequest]:
    """Yield the requests of a recording; a file that was gone on with has several headers.

    Raises:
        TraceError: it has no header, or one of a newer version.
    """
    decoder, block_tokens = msgspec.json.Decoder(_Row), None
    for number, line in read_lines(path, reading.progress):
        if (header := _header(path, number, line)) is not None:
            block_tokens = header.block_tokens
            continue
        if block_tokens is None:
            raise TraceError(path, f"line {number}", "a recording begins with a header")
        reading.report.rows_read += 1
        try:
            request = _request(decode(decoder, line), reading, block_tokens)
        except RowError as error:
            reading.skip(path, number, str(error))
            continue
        reading.report.rows_used += 1
        yield request


def _header(path: Path, number: int, line: bytes) -> _Header | None:
    if RECORDING.encode() not in line:
        return None
    try:
        header = decode(msgspec.json.Decoder(_Header), line)
    except RowError:
        return None
    if header.format != RECORDING:
        return None
    if header.version != VERSION or header.block_tokens < 1:
        reason = f"version {header.version} of the format; this program reads {VERSION}"
        raise TraceError(path, f"line {number}", reason)
    return header


def _request(row: _Row, reading: Reading, block_tokens: int) -> TraceRequest:
    require_blocks(len(row.hash_ids), row.input_length, block_tokens, has_partial=False)
    return TraceRequest(
        reading.seconds(row.timestamp),
        row.input_length,
        row.output_length,
        row.hash_ids,
        block_tokens,
        tenant=row.tenant,
        model=row.model,
        cached_tokens=row.cached_tokens,
    )
