"""The ordered map under each node."""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import takewhile

from prefixcache.index.children import Children


def test_it_equals_a_dict_and_a_sorted_list() -> None:
    """Through thousands of insertions and deletions, look-ups and neighbours are right."""
    rng = random.Random(7)
    entries: Children[int] = Children()
    plain: dict[bytes, int] = {}
    for step in range(6000):
        key = rng.randbytes(2)
        if key in plain and rng.random() < (0.2 if step < 4000 else 0.9):
            del plain[key], entries[key]
        else:
            plain[key] = entries[key] = step
        assert entries.get(key) == plain.get(key)
    assert list(entries.keys_in_order()) == sorted(plain)
    assert len(entries) == len(plain) > 2048
    for _ in range(500):
        assert_neighbours(entries, sorted(plain), rng.randbytes(rng.randint(0, 3)))


def assert_neighbours(entries: Children[int], keys: list[bytes], key: bytes) -> None:
    at = bisect_left(keys, key)
    expected = keys[max(at - 1, 0) : at] + keys[at : at + 1]
    assert [found for found, _ in entries.neighbours(key)] == expected


def test_emptied_it_can_be_filled_again() -> None:
    """The last deletion leaves nothing behind."""
    entries: Children[str] = Children()
    for _ in range(2):
        entries[b"b"] = "b"
        entries[b"a"] = "a"
        assert list(entries.neighbours(b"a")) == [(b"a", "a")]
        assert list(entries.neighbours(b"b")) == [(b"a", "a"), (b"b", "b")]
        del entries[b"a"], entries[b"b"]
        assert not entries
        assert list(entries.neighbours(b"a")) == []


def test_one_of_the_neighbours_shares_most() -> None:
    """No other key shares more leading bytes with a string than one of the two beside it."""
    rng = random.Random(3)
    keys = {bytes(rng.choices(b"ab", k=8)) for _ in range(60)}
    entries: Children[None] = Children()
    for key in keys:
        entries[key] = None
    for _ in range(200):
        wanted = bytes(rng.choices(b"abc", k=rng.randint(0, 8)))
        most = max(shared(key, wanted) for key in keys)
        assert max(shared(key, wanted) for key, _ in entries.neighbours(wanted)) == most


def shared(a: bytes, b: bytes) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
