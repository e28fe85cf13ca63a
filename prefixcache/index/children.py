"""A node's children: the one that goes on with a block, and the one that shares most of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from prefixcache.index.tokens import TOKEN_BYTES, Packed

_MAX_CHUNK = 512


class HasEdge(Protocol):
    """A child, named by the first block of its edge, or by all of it where that is shorter."""

    edge: bytes


V = TypeVar("V", bound=HasEdge)


class Children(Generic[V]):
    """Children by their first token; those that share it, in a bucket by their first block.

    A prompt that goes on with a token that no child begins with has nothing to share here, and
    one look-up tells. Most children are alone with their first token and need no more than that.
    """

    __slots__ = ("_block_bytes", "by_token", "n")

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self.by_token: dict[Packed, V | Bucket[V]] = {}  # four packed bytes each
        self.n = 0

    def __iter__(self) -> Iterator[V]:
        """Yield all children."""
        for entry in self.by_token.values():
            if isinstance(entry, Bucket):
                yield from entry.values()
            else:
                yield entry

    def get(self, block: bytes) -> V | None:
        """Return the child whose first block, or whole shorter edge, is `block`. O(1)."""
        entry = self.by_token.get(block[:TOKEN_BYTES])
        if isinstance(entry, Bucket):
            return entry.get(block)
        if entry is None or entry.edge[: self._block_bytes] != block:
            return None
        return entry

    def put(self, child: V) -> None:
        """Enter a child, in the place of one with the same first block. O(log n) at most."""
        token = child.edge[:TOKEN_BYTES]
        entry = self.by_token.setdefault(token, child)
        if entry is child:
            self.n += 1
            return
        size = self._block_bytes
        block = child.edge[:size]
        if isinstance(entry, Bucket):
            self.n += block not in entry
            entry[block] = child
        elif entry.edge[:size] == block:
            self.by_token[token] = child
        else:
            self.n += 1
            bucket = self.by_token[token] = Bucket[V]()
            bucket[entry.edge[:size]], bucket[block] = entry, child

    def remove(self, child: V) -> None:
        """Strike off a child. O(log n) at most."""
        self.n -= 1
        token = child.edge[:TOKEN_BYTES]
        entry = self.by_token[token]
        if entry is not child and isinstance(entry, Bucket) and len(entry) > 1:
            del entry[child.edge[: self._block_bytes]]
        else:
            del self.by_token[token]


class Bucket(dict[bytes, V]):
    """A dict from first blocks to children, with an order of the keys for who asks.

    Of all strings in a sorted list, one of the two beside a given string shares the most leading
    bytes with it. So the key that shares most is found by bisection, however many keys there are.
    The keys are sorted, in chunks, at the first such question, and kept so from then on.

    Cost: a look-up is a dict's; a change, once the keys are sorted, O(log n) comparisons and the
    move of at most one chunk of references.
    """

    __slots__ = ("_chunks", "_firsts")

    def __init__(self) -> None:
        self._chunks: list[list[bytes]] | None = None  # each before the next, none empty
        self._firsts: list[bytes] = []  # the first key of each chunk

    def __setitem__(self, key: bytes, value: V) -> None:
        if self._chunks is not None and key not in self:
            self._insert(self._chunks, key)
        super().__setitem__(key, value)

    def __delitem__(self, key: bytes) -> None:
        super().__delitem__(key)
        if self._chunks is None:
            return
        at = bisect_right(self._firsts, key) - 1
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._firsts[at] = chunk[0]
        else:
            del self._chunks[at], self._firsts[at]

    def neighbours(self, key: bytes) -> list[bytes]:
        """Return the last key before `key` and the first one not before it, where they exist."""
        chunks = self._chunks if self._chunks is not None else self._sort()
        if not chunks:
            return []
        at_chunk = max(bisect_right(self._firsts, key) - 1, 0)
        chunk = chunks[at_chunk]
        at = bisect_left(chunk, key)
        if 0 < at < len(chunk):
            return chunk[at - 1 : at + 1]
        before = chunk[at - 1 : at] if at else chunks[at_chunk - 1][-1:] if at_chunk else []
        after = chunk[at : at + 1] or self._firsts[at_chunk + 1 : at_chunk + 2]
        return before + after

    def _sort(self) -> list[list[bytes]]:
        keys = sorted(self)
        half = _MAX_CHUNK // 2
        self._chunks = [keys[i : i + half] for i in range(0, len(keys), half)]
        self._firsts = [chunk[0] for chunk in self._chunks]
        return self._chunks

    def _insert(self, chunks: list[list[bytes]], key: bytes) -> None:
        if not chunks:
            chunks.append([key])
            self._firsts.append(key)
            return
        at = max(bisect_right(self._firsts, key) - 1, 0)
        chunk = chunks[at]
        insort(chunk, key)
        self._firsts[at] = chunk[0]
        if len(chunk) > _MAX_CHUNK:
            half = len(chunk) // 2
            chunks[at : at + 1] = chunk[:half], chunk[half:]
            self._firsts.insert(at + 1, chunk[half])
