"""Keys: random, kept as digests, found only whole."""

from __future__ import annotations

import os

import pytest

from gateway.keys import KEY_BYTES, KeyRing, digest_of, hash_of, new_key, parse_hash


def test_a_new_key_is_random_and_plain() -> None:
    """256 bits, in characters that a header, a URL and a shell take as they are."""
    keys = {new_key(os.urandom) for _ in range(100)}
    assert len(keys) == 100
    assert all(key.isascii() and key.replace("-", "").replace("_", "").isalnum() for key in keys)
    assert new_key(lambda n: b"\x00" * n) == "pc-" + "A" * 43
    assert KEY_BYTES == 32


def test_a_ring_finds_owners_by_whole_keys() -> None:
    """A key has its owner; a part of it, a longer one and another case have none."""
    first, second = new_key(os.urandom), new_key(os.urandom)
    ring = KeyRing({digest_of(first): "a", digest_of(second): "b"})
    assert (ring.owner_of(first), ring.owner_of(second)) == ("a", "b")
    for wrong in ("", first[:-1], first + "A", first.swapcase(), hash_of(first), "\udcff", "ä"):
        assert ring.owner_of(wrong) is None
    assert KeyRing[str]({}).owner_of(first) is None


def test_every_digest_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first key of a ring takes as many comparisons as the last and as none of it."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr("gateway.keys.hmac.compare_digest", compare)
    keys = [f"key {number}" for number in range(5)]
    ring = KeyRing({digest_of(key): key for key in keys})
    for key in (keys[0], keys[-1], "no key"):
        compared.clear()
        ring.owner_of(key)
        assert len(compared) == 5


def test_hashes_are_read_back() -> None:
    """What is written for a key is its digest, in either case; anything else is no hash."""
    text = hash_of("key")
    assert parse_hash(text) == digest_of("key")
    assert parse_hash("sha256:" + text.removeprefix("sha256:").upper()) == digest_of("key")
    for wrong in ("", "key", text[:-2], text + "00", text.replace("sha256", "md5"), "sha256:é"):
        assert parse_hash(wrong) is None
