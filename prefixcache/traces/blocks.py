"""Hash ids as the token ids of a cache whose blocks are two tokens long."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from prefixcache.index import TOKEN_BYTES

BLOCK_TOKENS = 2  # 64 bits
_END = bytes(TOKEN_BYTES)  # stands for what comes after the last block, and is never stored


def packed_prompt(hash_ids: Sequence[int]) -> bytes:
    """Return the ids as packed tokens, two each, and half a block after them.

    A look-up leaves at least one token to compute; the last one is there for that. Nothing is
    remembered from call to call: an id of at most 64 bits is its own two tokens. Others, which
    no format of ours has, are told apart by a digest of as many bits.
    """
    try:
        blocks = array("Q", hash_ids)
    except OverflowError:
        blocks = array("Q", map(_folded, hash_ids))
    return blocks.tobytes() + _END


def _folded(hash_id: int) -> int:
    if 0 <= hash_id < 2**64:
        return hash_id
    return int.from_bytes(blake2b(str(hash_id).encode(), digest_size=8).digest())
