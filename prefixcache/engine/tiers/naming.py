"""What makes a prompt's KV what it is, as names that hold in every process."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from prefixcache.engine.sequence import Sequence
from prefixcache.engine.served import Served
from prefixcache.index import TOKEN_BYTES, Passed, Published, Scope, ScopeKind
from prefixcache.tiers import StoredNamespace, StoredScope, WantedBlock, chain_keys
from prefixcache.tiers.keys import KEY_BYTES


@dataclass(slots=True)
class Path:
    """A prompt as a chain of named blocks. Those before `first_block` are another's."""

    namespace: StoredNamespace
    first_block: int
    block_tokens: int
    keys: list[bytes]  # before its first block, and of each block from there on
    tokens: bytes = b""

    def extend(self, tokens: bytes) -> None:
        """Name the whole blocks of a prompt that goes on as before. Cost: what is new."""
        size = self.block_tokens * TOKEN_BYTES
        at = (self.first_block + len(self.keys) - 1) * size
        self.keys += chain_keys(self.keys[-1], memoryview(tokens)[at:], self.block_tokens)
        self.tokens = tokens

    @property
    def end_block(self) -> int:
        """The block after the last one that is named."""
        return self.first_block + len(self.keys) - 1

    def key(self, block: int) -> bytes:
        """Return the key of a block."""
        return self.keys[block - self.first_block + 1]

    def keys_between(self, start: int, stop: int) -> list[bytes]:
        """Return the keys of blocks `start` to `stop` - 1."""
        return self.keys[start - self.first_block + 1 : stop - self.first_block + 1]

    def wanted(self, block: int) -> WantedBlock:
        """Return what to ask for to get a block."""
        at, size = block - self.first_block, self.block_tokens * TOKEN_BYTES
        ids = self.tokens[block * size : (block + 1) * size]
        return WantedBlock(self.keys[at + 1], self.keys[at], ids, self.namespace)


class Naming:
    """Names namespaces and prompts by digests of contents."""

    def __init__(self, served: Served, *, block_tokens: int) -> None:
        self._served = served
        self._block_tokens = block_tokens

    def path(self, sequence: Sequence, passage: Passed | None) -> Path:
        """Return a request's prompt as named blocks, those it shares by a published one left out.

        A namespace tells which prompt its blocks hang from in place of the salt, so that what hangs
        from a retired version goes with it. The salt is in the keys then.
        """
        namespace, salt = sequence.namespace, sequence.namespace.salt
        adapter, first_block = sequence.adapter, 0
        named = None if salt is None else _digest("salt", salt)
        if sequence.published is not None:
            named = _prompt_digest(sequence.published)
        elif passage is not None:
            named, first_block = _prompt_digest(passage.published), passage.n_blocks
        stored = StoredNamespace(
            model=self._model(namespace.model),
            adapter=None if adapter is None else adapter.digest,
            tenant=_digest("tenant", namespace.tenant),
            salt=named,
        )
        root_key = stored.root_key()
        if passage is not None and salt is not None:
            root_key = _digest("salted", root_key, salt)
        path = Path(stored, 0, self._block_tokens, [root_key])
        tokens = sequence.packed(sequence.n_tokens)
        path.extend(tokens)
        path.keys, path.first_block = path.keys[first_block:], first_block
        return path

    def scope(self, gone: Scope | Published) -> StoredScope | None:
        """Return what an invalidation of the index means here; None: nothing is stored of it."""
        if isinstance(gone, Published):
            return StoredScope(salt=_prompt_digest(gone))
        match gone.kind, gone.value:
            case ScopeKind.MODEL, str(load_id):
                return StoredScope(model=self._model(load_id))
            case ScopeKind.ADAPTER, str(load_id):
                digest = self._served.adapter_digest(load_id)
                return None if digest is None else StoredScope(adapter=digest)
            case ScopeKind.TENANT, str(tenant):
                return StoredScope(tenant=_digest("tenant", tenant))
        return StoredScope()  # one namespace: rare, and everything holds it

    def _model(self, load_id: str) -> bytes:
        return self._served.model_digest(load_id)


def _prompt_digest(published: Published) -> bytes:
    return _digest("prompt", published.name, published.version)


def _digest(*parts: str | bytes | int) -> bytes:
    return blake2b(msgspec.msgpack.encode(parts), digest_size=KEY_BYTES).digest()
