"""Blocks on a server of Redis or Valkey: what one gateway writes, all that share it read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING
from uuid import uuid4

import xxhash

from prefixcache.config import MAX_REMOTE_VALUE_BYTES, MIN_REMOTE_VALUE_BYTES
from prefixcache.errors import ConfigError, TierError
from prefixcache.tiers.frames import read_record
from prefixcache.tiers.keys import StoredNamespace, StoredScope
from prefixcache.tiers.records import BlockRecord, WantedBlock
from prefixcache.tiers.refusals import Refusals, RefusedError
from prefixcache.tiers.remote.names import (
    BORN,
    SCOPES_KEY,
    block_key,
    chunk_key,
    safe_address,
    scope_field,
    scope_fields,
)
from prefixcache.tiers.remote.values import (
    LOOK_BYTES,
    HeadValue,
    read_head_value,
    stamp_in,
    values_of,
)

if TYPE_CHECKING:
    from prefixcache.tiers.remote.client import Client, Command, Reply

_MODULE = "prefixcache.tiers.remote.client"
_MOST_BLOCKS = 16  # in one trip
_BATCH_BYTES = 1 << 23


class RemoteTier:
    """A `BlockTier` on a server.

    Each record has a stamp: a digest of how often each scope that its namespace lies in had been
    invalidated when it was written, as the server counts. Who reads asks for the counts in the
    trip that asks for the records, so what one gateway has invalidated is dead for all. A server
    that has lost its counts has a new `born` mark, and then nothing older is believed.
    """

    def __init__(
        self,
        url: str,
        *,
        ttl_seconds: int = 86_400,
        max_value_bytes: int = 1 << 20,
        timeout_seconds: float = 2.0,
    ) -> None:
        """Connect with the first call.

        Args:
            url: redis://, rediss:// (TLS) or unix://, with user and password where there are any.
            ttl_seconds: a block that was neither written nor read for so long is gone.
            max_value_bytes: no value is larger; larger records are cut in pieces.
            timeout_seconds: for an answer, and for a connection.

        Raises:
            ConfigError: a setting cannot work, or the extra `remote` is not installed.
        """
        if ttl_seconds < 1:
            raise ConfigError("remote_ttl_seconds", ttl_seconds, "must be at least 1")
        if not MIN_REMOTE_VALUE_BYTES <= max_value_bytes <= MAX_REMOTE_VALUE_BYTES:
            reason = f"must be from {MIN_REMOTE_VALUE_BYTES} to {MAX_REMOTE_VALUE_BYTES}"
            raise ConfigError("remote_value_bytes", max_value_bytes, reason)
        self.refusals = Refusals("remote")
        self.address = safe_address(url)
        self._ttl_seconds, self._max_value_bytes = ttl_seconds, max_value_bytes
        self._client = _client(url, self.address, timeout_seconds)

    def likely_length(self, keys: Sequence[bytes]) -> int | None:
        """Return None: only the server knows."""
        return None

    def read(self, wanted: Sequence[WantedBlock]) -> list[BlockRecord]:
        """Return the records of the leading blocks that the server has, verified, in order."""
        records: list[BlockRecord] = []
        for at in range(0, len(wanted), _MOST_BLOCKS):
            asked = wanted[at : at + _MOST_BLOCKS]
            found = self._read(asked)
            records += found
            if len(found) < len(asked):
                break
        return records

    def write(self, records: Sequence[BlockRecord]) -> None:
        """Keep records; those that the server has already are skipped."""
        unique: dict[bytes, BlockRecord] = {}
        for record in records:
            unique.setdefault(record.key, record)
        for batch in _batches(unique.values()):
            self._write(batch)

    def invalidate(self, scope: StoredScope) -> None:
        """Return nothing of this scope any more that was written before, to anyone."""
        self._client.run([_born(), ("HINCRBY", SCOPES_KEY, scope_field(scope), 1)])

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def _read(self, asked: Sequence[WantedBlock]) -> list[BlockRecord]:
        spaces = list(dict.fromkeys(block.namespace for block in asked))
        blocks = [block_key(block.namespace, block.key) for block in asked]
        keep: list[Command] = [("GETEX", block, "EX", self._ttl_seconds) for block in blocks]
        counts, values = _split(self._client.run([*map(_counts, spaces), *keep]), len(spaces))
        stamps = {space: _stamp(reply) for space, reply in zip(spaces, counts, strict=True)}
        heads = list(self._heads(asked, blocks, values, stamps))
        return list(self._records(asked, blocks, heads))

    def _heads(
        self,
        asked: Sequence[WantedBlock],
        blocks: Sequence[str],
        values: Sequence[Reply],
        stamps: Mapping[StoredNamespace, int | None],
    ) -> Iterator[HeadValue]:
        """Yield the leading heads that are there and still valid."""
        for block, name, value in zip(asked, blocks, values, strict=True):
            if not isinstance(value, bytes):
                return
            try:
                head = read_head_value(value)
            except RefusedError as error:
                self._refuse(error, name)
                return
            if head.frame.stamp != stamps[block.namespace]:
                return  # invalidated
            yield head

    def _records(
        self, asked: Sequence[WantedBlock], blocks: Sequence[str], heads: Sequence[HeadValue]
    ) -> Iterator[BlockRecord]:
        """Yield the leading records that are whole and the wanted ones."""
        payloads = self._payloads(blocks, heads)
        for block, name, head, payload in zip(asked, blocks, heads, payloads, strict=False):
            if payload is None:  # some of it had to go for room
                self._client.run([("UNLINK", name)])
                return
            try:
                record = read_record(head.frame, payload)
                if not record.answers(block):
                    raise RefusedError("other_block")
            except RefusedError as error:
                self._refuse(error, name)
                return
            yield record

    def _payloads(
        self, blocks: Sequence[str], heads: Sequence[HeadValue]
    ) -> Iterator[memoryview | None]:
        """Yield each head's payload, with one more trip for all that are in pieces."""
        names = [
            chunk_key(block, head.frame.payload_sum, index)
            for block, head in zip(blocks, heads, strict=False)
            for index in range(head.n_pieces)
        ]
        replies = iter(self._client.run([("GETEX", n, "EX", self._ttl_seconds) for n in names]))
        for head in heads:
            if head.payload is not None:
                yield head.payload
                continue
            pieces = [next(replies) for _ in range(head.n_pieces)]
            whole = [piece for piece in pieces if isinstance(piece, bytes)]
            yield memoryview(b"".join(whole)) if len(whole) == len(pieces) else None

    def _write(self, batch: Sequence[BlockRecord]) -> None:
        spaces = list(dict.fromkeys(record.namespace for record in batch))
        blocks = [block_key(record.namespace, record.key) for record in batch]
        looks: list[Command] = [("GETRANGE", block, 0, LOOK_BYTES - 1) for block in blocks]
        replies = self._client.run([_born(), *map(_counts, spaces), *looks])[1:]
        counts, there = _split(replies, len(spaces))
        stamps = {space: _stamp(reply) for space, reply in zip(spaces, counts, strict=True)}
        commands: list[Command] = []
        for record, block, look in zip(batch, blocks, there, strict=True):
            stamp = stamps[record.namespace]
            if stamp is None:
                raise TierError(f"the remote tier at {self.address} does not keep what is written")
            if not isinstance(look, bytes) or stamp_in(look) != stamp:
                commands += self._commands(record, block, stamp)
        self._client.run(commands)

    def _commands(self, record: BlockRecord, block: str, stamp: int) -> Iterator[Command]:
        """Yield what writes a record: its head comes last, so whoever sees it can read it."""
        values = values_of(record, stamp, self._max_value_bytes)
        for index, piece in enumerate(values.pieces):
            name = chunk_key(block, values.payload_sum, index)
            yield ("SET", name, piece, "EX", self._ttl_seconds)
        yield ("SET", block, values.head, "EX", self._ttl_seconds)

    def _refuse(self, error: RefusedError, block: str) -> None:
        self.refusals.note(error.reason, "a record")
        self._client.run([("UNLINK", block)])  # or it would be in the way of a good one


def _client(url: str, address: str, timeout_seconds: float) -> Client:
    try:
        client: type[Client] = import_module(_MODULE).Client
    except ImportError as error:
        reason = f"needs the Redis client ({error}): pip install 'prefixcache[remote]'"
        raise ConfigError("remote", address, reason) from None
    return client(url, address, timeout_seconds=timeout_seconds)


def _born() -> Command:
    return ("HSETNX", SCOPES_KEY, BORN, uuid4().hex)


def _counts(namespace: StoredNamespace) -> Command:
    return ("HMGET", SCOPES_KEY, BORN, *scope_fields(namespace))


def _stamp(reply: Reply) -> int | None:
    """Return the digest of a namespace's counts; None: the server has none."""
    if not isinstance(reply, list) or not reply or reply[0] is None:
        return None
    return xxhash.xxh3_64_intdigest(b" ".join(count or b"0" for count in reply))


def _split(replies: list[Reply], at: int) -> tuple[list[Reply], list[Reply]]:
    return replies[:at], replies[at:]


def _batches(records: Iterable[BlockRecord]) -> Iterator[list[BlockRecord]]:
    batch: list[BlockRecord] = []
    n_bytes = 0
    for record in records:
        if batch and (len(batch) == _MOST_BLOCKS or n_bytes + record.n_bytes > _BATCH_BYTES):
            yield batch
            batch, n_bytes = [], 0
        batch.append(record)
        n_bytes += record.n_bytes
    if batch:
        yield batch
