"""News of what is stored and what has gone, for those who keep an index of their own elsewhere."""

from __future__ import annotations

from typing import Protocol

import msgspec
import xxhash

from prefixcache.index.hooks import Hooks
from prefixcache.index.namespaces import Scope
from prefixcache.index.nodes import Mount, Node, Root
from prefixcache.index.published import Published
from prefixcache.index.spans import GroupRuns


class BlockEvent:
    """Some consecutive blocks of one path. To be read during the call alone."""

    __slots__ = ("_block_bytes", "_first", "_node", "n_blocks")

    def __init__(self, node: Node, first_block: int, n_blocks: int, block_bytes: int) -> None:
        self._node = node
        self._first = first_block  # counted in the node
        self._block_bytes = block_bytes
        self.n_blocks = n_blocks

    @property
    def start_block(self) -> int:
        """Blocks before them in the prompt."""
        return self._node.end_block - self._node.n_blocks + self._first

    @property
    def tenant(self) -> str:
        """Whose they are."""
        return self._node.account.tenant

    @property
    def token_ids(self) -> bytes:
        """Their token ids, packed."""
        at = self._first * self._block_bytes
        return self._node.edge[at : at + self.n_blocks * self._block_bytes]

    @property
    def runs(self) -> GroupRuns:
        """The blocks of the node that they are in."""
        return self._node.runs

    @property
    def windows(self) -> GroupRuns:
        """In each window group, the blocks that the last positions of the node still have."""
        return self._node.windows

    def parent_key(self) -> bytes:
        """Return the key of the block before the first of them; of the tree if there is none.

        Where a tenant's own begins behind a published prompt, that is the prompt's block.
        """
        above = self._node.parent
        if not self._first and isinstance(above, Mount):
            return _passed_key(above, self._block_bytes)
        return self._key_before()

    def keys(self) -> tuple[bytes, ...]:
        """Return a key for each block: 16 bytes that name it and all that comes before it.

        Equal in every process for equal namespaces, generations and tokens: each is the xxh3_128
        digest of the key before it and the block's packed ids. Behind a published prompt the key
        before is one of the tenant's own, which stands for the passage, so that no tenants share
        keys. Not for matching: two prompts may share a key in theory. Cost: the path's nodes that
        nobody asked about before, and a hash of each block.
        """
        return _chain(self._key_before(), self.token_ids, self._block_bytes)[1:]

    def _key_before(self) -> bytes:
        before = self._node.edge[: self._first * self._block_bytes]
        return _chain(key_above(self._node, self._block_bytes), before, self._block_bytes)[-1]


class Observer(Protocol):
    """Is told what comes and goes, while it happens.

    It may look, but not change the cache: that raises HookError. What it raises is logged.
    """

    def stored(self, event: BlockEvent) -> None:
        """These blocks can be matched from now on."""

    def removed(self, event: BlockEvent) -> None:
        """The KV of these blocks is no longer on the device."""

    def cleared(self, scope: Scope | Published) -> None:
        """Nothing of this scope, or below this prompt, can be matched any more.

        `removed` follows for each of its blocks when they are taken down.
        """


class Observers:
    """Whoever wants to know: `all` of them. With nobody there, news cost one test."""

    __slots__ = ("_block_bytes", "_hooks", "all")

    def __init__(self, hooks: Hooks, block_bytes: int) -> None:
        self._hooks = hooks
        self._block_bytes = block_bytes
        self.all: list[Observer] = []

    def add(self, observer: Observer) -> None:
        """Tell `observer` from now on."""
        self.all.append(observer)

    def remove(self, observer: Observer) -> None:
        """Tell `observer` no more; one that is not there is ignored."""
        self.all = [known for known in self.all if known is not observer]

    def stored(self, node: Node, first_block: int, n_blocks: int) -> None:
        """Tell of blocks of `node`, which are in the tree."""
        event = BlockEvent(node, first_block, n_blocks, self._block_bytes)
        for observer in self.all:
            self._hooks.tell(observer.stored, event)

    def removed(self, node: Node, first_block: int, n_blocks: int) -> None:
        """Tell of blocks of `node`, which are still in the tree."""
        event = BlockEvent(node, first_block, n_blocks, self._block_bytes)
        for observer in self.all:
            self._hooks.tell(observer.removed, event)

    def cleared(self, scope: Scope | Published) -> None:
        """Tell of a scope or prompt that has been invalidated."""
        for observer in self.all:
            self._hooks.tell(observer.cleared, scope)


def key_above(node: Node, block_bytes: int) -> bytes:
    """Return the key of the last block before `node`. Cost: the ancestors that have none yet."""
    path: list[Node] = []
    above = node.parent
    while above is not None and above.digest is None:
        path.append(above)
        if isinstance(above, Root):
            break
        above = above.parent
    key = b"" if above is None or above.digest is None else above.digest
    for ancestor in reversed(path):
        key = ancestor.digest = _key_after(key, ancestor, block_bytes)
    return key


def _key_after(key: bytes, node: Node, block_bytes: int) -> bytes:
    """Return the key of the last block of `node`; `key` is that of what its parent ends with."""
    if isinstance(node, Root):
        return _root_key(node, block_bytes)
    if isinstance(node, Mount):
        return xxhash.xxh3_128_digest(key + _prompt_name(node))
    return _chain(key, node.edge, block_bytes)[-1]


def _chain(key: bytes, tokens: bytes, block_bytes: int) -> tuple[bytes, ...]:
    keys = [key]
    for at in range(0, len(tokens), block_bytes):
        keys.append(xxhash.xxh3_128_digest(keys[-1] + tokens[at : at + block_bytes]))
    return tuple(keys)


def _root_key(root: Root, block_bytes: int) -> bytes:
    return xxhash.xxh3_128_digest(
        msgspec.msgpack.encode((root.namespace, root.generations, block_bytes))
    )


def _passed_key(mount: Mount, block_bytes: int) -> bytes:
    """Return the key of the last block of the system's before a mount. Cost: their hashes, once."""
    if mount.passed_digest is None:
        passed = mount.published.tokens[: mount.end_block * block_bytes]
        root_key = _root_key(mount.system_root, block_bytes)
        mount.passed_digest = _chain(root_key, passed, block_bytes)[-1]
    return mount.passed_digest


def _prompt_name(mount: Mount) -> bytes:
    published = mount.published
    return msgspec.msgpack.encode((published.name, published.version, mount.end_block))
