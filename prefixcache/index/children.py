"""A node's children by their first block, and the neighbours of a block among them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, ValuesView
from typing import Generic, TypeVar

V = TypeVar("V")

_MAX_CHUNK = 512


class Children(Generic[V]):
    """A dict from first blocks to values, with an order of the keys for who asks for neighbours.

    Of all strings in a sorted list, one of the two beside a given string shares the most leading
    bytes with it. So the key that shares most is found by bisection, however many keys there are.
    The keys are sorted, in chunks, at the first such question, and kept so from then on.

    Cost: `get` is one dict look-up; the others, once sorted, O(log n) comparisons and the move of
    at most one chunk of references.
    """

    __slots__ = ("_chunks", "_firsts", "_values")

    def __init__(self) -> None:
        self._values: dict[bytes, V] = {}
        self._chunks: list[list[bytes]] | None = None  # each before the next, none empty
        self._firsts: list[bytes] = []  # the first key of each chunk

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, key: bytes) -> V:
        return self._values[key]

    def __setitem__(self, key: bytes, value: V) -> None:
        if self._chunks is not None and key not in self._values:
            self._insert(self._chunks, key)
        self._values[key] = value

    def __delitem__(self, key: bytes) -> None:
        del self._values[key]
        if self._chunks is None:
            return
        at = bisect_right(self._firsts, key) - 1
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
        for chunk in self._chunks if self._chunks is not None else self._sort():
            yield from chunk

    def neighbours(self, key: bytes) -> list[tuple[bytes, V]]:
        """Return the last entry before `key` and the first one not before it, where they exist."""
        chunks = self._chunks if self._chunks is not None else self._sort()
        if not chunks:
            return []
        at_chunk = max(bisect_right(self._firsts, key) - 1, 0)
        chunk = chunks[at_chunk]
        at = bisect_left(chunk, key)
        keys = []
        if at:
            keys.append(chunk[at - 1])
        elif at_chunk:
            keys.append(chunks[at_chunk - 1][-1])
        if at < len(chunk):
            keys.append(chunk[at])
        elif at_chunk + 1 < len(chunks):
            keys.append(self._firsts[at_chunk + 1])
        return [(found, self._values[found]) for found in keys]

    def _sort(self) -> list[list[bytes]]:
        keys = sorted(self._values)
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
