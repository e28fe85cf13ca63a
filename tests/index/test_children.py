"""What hangs below a node: children by first token, and those that share it by first block."""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass
from itertools import takewhile

from prefixcache.index import pack
from prefixcache.index.children import Bucket, Children


@dataclass
class Child:
    """An edge."""

    edge: bytes


def child(*ids: int) -> Child:
    return Child(pack(ids))


def test_a_bucket_equals_a_dict_and_a_sorted_list() -> None:
    """Through thousands of insertions and deletions, look-ups and neighbours are right."""
    rng = random.Random(7)
    bucket: Bucket[Child] = Bucket()
    plain: dict[bytes, Child] = {}
    for step in range(6000):
        key = rng.randbytes(2)
        if key in plain and rng.random() < (0.2 if step < 4000 else 0.9):
            del plain[key], bucket[key]
        else:
            plain[key] = bucket[key] = child(step)
        assert bucket.get(key) is plain.get(key)
        if step % 50 == 0:
            assert_neighbours(bucket, sorted(plain), rng.randbytes(rng.randint(0, 3)))
    assert len(bucket) == len(plain) > 2048
    for _ in range(500):
        assert_neighbours(bucket, sorted(plain), rng.randbytes(rng.randint(0, 3)))


def assert_neighbours(bucket: Bucket[Child], keys: list[bytes], key: bytes) -> None:
    at = bisect_left(keys, key)
    assert bucket.neighbours(key) == keys[max(at - 1, 0) : at + 1]


def test_an_emptied_bucket_can_be_filled_again() -> None:
    """The last deletion leaves nothing behind."""
    bucket: Bucket[Child] = Bucket()
    for _ in range(2):
        bucket[b"b"], bucket[b"a"] = child(1), child(2)
        assert bucket.neighbours(b"a") == [b"a"]
        assert bucket.neighbours(b"b") == [b"a", b"b"]
        del bucket[b"a"], bucket[b"b"]
        assert not bucket
        assert bucket.neighbours(b"a") == []


def test_one_of_the_neighbours_shares_most() -> None:
    """No other key shares more leading bytes with a string than one of the two beside it."""
    rng = random.Random(3)
    bucket: Bucket[Child] = Bucket()
    for _ in range(60):
        bucket[bytes(rng.choices(b"ab", k=8))] = child(0)
    for _ in range(200):
        wanted = bytes(rng.choices(b"abc", k=rng.randint(0, 8)))
        most = max(shared(key, wanted) for key in bucket)
        assert max(shared(key, wanted) for key in bucket.neighbours(wanted)) == most


def shared(a: bytes, b: bytes) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def test_a_child_is_found_by_its_whole_first_block() -> None:
    """Not by its first token alone, though no other child begins with that."""
    children: Children[Child] = Children(block_bytes=8)
    children.put(child(1, 2, 3))
    children.put(child(5))
    assert children.get(pack([1, 2])) is not None
    assert children.get(pack([5])) is not None
    for ids in ([1, 9], [1], [5, 5]):
        assert children.get(pack(ids)) is None


def test_children_equal_a_dict_of_first_blocks() -> None:
    """Alone with their first token or not, whatever comes and goes."""
    rng = random.Random(2)
    children: Children[Child] = Children(block_bytes=8)
    plain: dict[bytes, Child] = {}
    for step in range(3000):
        new = child(*(rng.randrange(4) for _ in range(rng.randint(1, 4))))
        block = new.edge[:8]
        if block in plain and rng.random() < (0.3 if step < 2000 else 0.9):
            children.remove(plain.pop(block))
        else:
            children.put(new)
            plain[block] = new
        assert children.get(block) is plain.get(block)
        assert children.n == len(plain)
    assert {id(one) for one in children} == {id(one) for one in plain.values()}
    for one in list(plain.values()):
        children.remove(one)
    assert children.n == 0
    assert not children.by_token
