"""A map from packed blocks to values that also finds a block's neighbours in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, ValuesView
from typing import Generic, TypeVar

V = TypeVar("V")

_MAX_CHUNK = 1024


class BlockMap(Generic[V]):
    """A dict whose keys are kept sorted in chunks.

    Of all strings in a sorted list, one of the two beside a given string shares the most leading
    bytes with it. So the key that shares most is found by bisection, however many keys there are.

    Cost: `get` is one dict look-up; the others O(log n) comparisons and the move of at most one
    chunk of references.
    """

    __slots__ = ("_chunks", "_firsts", "_values")

    def __init__(self) -> None:
        self._values: dict[bytes, V] = {}
        self._chunks: list[list[bytes]] = []  # sorted, and each chunk before the next; none empty
        self._firsts: list[bytes] = []  # the first key of each chunk

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, key: bytes) -> V:
        return self._values[key]

    def __setitem__(self, key: bytes, value: V) -> None:
        if key not in self._values:
            self._insert(key)
        self._values[key] = value

    def __delitem__(self, key: bytes) -> None:
        del self._values[key]
        at = self._chunk_of(key)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._firsts[at] = chunk[0]
        else:
            del self._chunks[at], self._firsts[at]

    def get(self, key: bytes) -> V | None:
        """Return the value of exactly `key`, or None."""
        return self._values.get(key)

    def values(self) -> ValuesView[V]:
        """Return all values, oldest key first."""
        return self._values.values()

    def keys_in_order(self) -> Iterator[bytes]:
        """Yield the keys, sorted."""
        for chunk in self._chunks:
            yield from chunk

    def neighbours(self, key: bytes) -> Iterator[tuple[bytes, V]]:
        """Yield the last entry before `key` and the first one not before it, where they exist."""
        if not self._chunks:
            return
        chunk_index = self._chunk_of(key)
        chunk = self._chunks[chunk_index]
        at = bisect_left(chunk, key)
        if at:
            yield chunk[at - 1], self._values[chunk[at - 1]]
        if at == len(chunk):  # every earlier chunk starts before `key`, so no other case crosses
            chunk_index, at = chunk_index + 1, 0
        if chunk_index < len(self._chunks):
            following = self._chunks[chunk_index][at]
            yield following, self._values[following]

    def _chunk_of(self, key: bytes) -> int:
        return max(bisect_right(self._firsts, key) - 1, 0)

    def _insert(self, key: bytes) -> None:
        if not self._chunks:
            self._chunks, self._firsts = [[key]], [key]
            return
        at = self._chunk_of(key)
        chunk = self._chunks[at]
        insort(chunk, key)
        self._firsts[at] = chunk[0]
        if len(chunk) > _MAX_CHUNK:
            half = len(chunk) // 2
            self._chunks[at : at + 1] = chunk[:half], chunk[half:]
            self._firsts.insert(at + 1, chunk[half])
