"""Records for tests: of small prompts, with KV that tells what it is of. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from prefixcache.index import TOKEN_BYTES, pack
from prefixcache.tiers import BlockRecord, StoredNamespace, WantedBlock, chain_keys

BLOCK = 4  # tokens


def digest(name: str) -> bytes:
    """Return a digest as namespaces have them."""
    return blake2b(name.encode(), digest_size=16).digest()


def owner(
    tenant: str = "shop", model: str = "small", adapter: str | None = None
) -> StoredNamespace:
    """Return a namespace."""
    return StoredNamespace(
        model=digest(model),
        adapter=None if adapter is None else digest(adapter),
        tenant=digest(tenant),
        salt=None,
    )


SHOP = owner()


def payload(seed: bytes, n_bytes: int) -> bytes:
    """Return bytes that belong to one seed alone."""
    piece = blake2b(seed, digest_size=64).digest()
    return (piece * (n_bytes // len(piece) + 1))[:n_bytes]


def records(
    tokens: Sequence[int], space: StoredNamespace = SHOP, part_bytes: int = 100
) -> list[BlockRecord]:
    """Return the blocks of a prompt: one part of some bytes, one of none, one that is absent."""
    root = space.root_key()
    packed = pack(tokens)
    keys = chain_keys(root, packed, BLOCK)
    size = BLOCK * TOKEN_BYTES
    return [
        BlockRecord(
            key,
            parent,
            space,
            packed[index * size : (index + 1) * size],
            (payload(key, part_bytes), None, payload(parent, part_bytes // 3), b""),
        )
        for index, (parent, key) in enumerate(zip([root, *keys], keys, strict=False))
    ]


def wanted(stored: Sequence[BlockRecord]) -> list[WantedBlock]:
    """Return how one asks for them."""
    return [
        WantedBlock(record.key, record.parent_key, record.token_ids, record.namespace)
        for record in stored
    ]


def same(found: Sequence[BlockRecord], stored: Sequence[BlockRecord]) -> bool:
    """Whether all is equal, whatever the parts are kept in."""
    return [_plain(record) for record in found] == [_plain(record) for record in stored]


def prompt(number: int, n_blocks: int = 1) -> list[int]:
    """Return the tokens of a prompt that begins as no other number's does."""
    return [number, *range(1, n_blocks * BLOCK)]


def _plain(record: BlockRecord) -> tuple[object, ...]:
    parts = tuple(None if part is None else bytes(part) for part in record.parts)
    return record.key, record.parent_key, record.namespace, record.token_ids, parts
