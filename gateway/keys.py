"""API keys: made at random, kept as digests, and looked up without telling how near a guess is."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

_Owner = TypeVar("_Owner")

KEY_BYTES = 32  # of randomness: a digest of so much needs no slow hash, see design/0025
KEY_PREFIX = "pc-"  # by which scanners for leaked secrets can know it
_ALGORITHM = "sha256:"


class KeyRing(Generic[_Owner]):
    """Knows whose a key is, from the keys' digests alone."""

    def __init__(self, digests: Mapping[bytes, _Owner]) -> None:
        self._digests = tuple(digests.items())

    def owner_of(self, key: str) -> _Owner | None:
        """Return whose key it is; None: nobody's.

        Every digest is compared to its end, so that the time taken says nothing of any of them.
        """
        presented = digest_of(key)
        found: _Owner | None = None
        for digest, owner in self._digests:
            if hmac.compare_digest(digest, presented):
                found = owner
        return found


def new_key(random_bytes: Callable[[int], bytes]) -> str:
    """Return a key that has not been seen before."""
    text = base64.urlsafe_b64encode(random_bytes(KEY_BYTES)).decode("ascii")
    return KEY_PREFIX + text.rstrip("=")


def hash_of(key: str) -> str:
    """Return what a configuration file has in a key's place."""
    return _ALGORITHM + digest_of(key).hex()


def digest_of(key: str) -> bytes:
    """Return the key's SHA-256. Header bytes that are no text count as they came."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def parse_hash(text: str) -> bytes | None:
    """Return the digest that `hash_of` wrote; None: it is no such text."""
    name, digest = text[: len(_ALGORITHM)], text[len(_ALGORITHM) :]
    try:
        parsed = binascii.unhexlify(digest)
    except (binascii.Error, ValueError):
        return None
    is_digest = name == _ALGORITHM and len(parsed) == hashlib.sha256().digest_size
    return parsed if is_digest else None


def first_bad_hash(hashes: Sequence[str]) -> int | None:
    """Return the index of the first text that is no hash; None: all are."""
    return next((i for i, text in enumerate(hashes) if parse_hash(text) is None), None)
