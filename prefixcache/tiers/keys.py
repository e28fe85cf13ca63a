"""Names of blocks that mean the same in every process: digests of all that made their KV."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from prefixcache.index import TOKEN_BYTES, Packed

KEY_BYTES = 16


class StoredNamespace(msgspec.Struct, frozen=True, cache_hash=True):
    """Whose KV a record holds, and what it was computed with.

    Unlike an index's namespace it survives the process: contents are named, not loads. Each
    field is a digest of KEY_BYTES, so that no name of a tenant leaves the process.
    """

    model: bytes  # weights, dtype, KV format, block size: whatever makes KV differ
    adapter: bytes | None  # its weights
    tenant: bytes
    salt: bytes | None

    def root_key(self) -> bytes:
        """Return the key that stands before a prompt's first block."""
        return _digest(msgspec.msgpack.encode(self))


class StoredScope(msgspec.Struct, frozen=True):
    """The namespaces with these fields; None: whatever they have there. The bare one is of all."""

    model: bytes | None = None
    adapter: bytes | None = None
    tenant: bytes | None = None
    salt: bytes | None = None

    def holds(self, namespace: StoredNamespace) -> bool:
        """Whether `namespace` lies in it."""
        return all(
            mine is None or mine == getattr(namespace, field)
            for field, mine in msgspec.structs.asdict(self).items()
        )


def chain_keys(root_key: bytes, tokens: Packed, block_size_tokens: int) -> list[bytes]:
    """Return a key for each whole block of a prompt.

    Each is the digest of the key before it and the block's packed ids, so it names the block and
    all that comes before. The digest is a cryptographic one: only the last block's ids are compared
    on a read, so who could find two prompts of one key could be given the KV of another's prompt.
    Cost: one hash of a block's ids for each, about 1 us.
    """
    size = block_size_tokens * TOKEN_BYTES
    view, keys, key = memoryview(tokens), [], root_key
    for at in range(0, len(view) // size * size, size):
        key = _digest(key + bytes(view[at : at + size]))
        keys.append(key)
    return keys


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=KEY_BYTES).digest()
