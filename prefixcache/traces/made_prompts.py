"""Made-up prompts as block ids: what is the same stands in the same segments."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

_CHAIN_BYTES = 16
_ID_BYTES = 8


class Segment(NamedTuple):
    """A part of a prompt. Segments of one name and length hold the same tokens."""

    name: str
    tokens: int


def block_ids(segments: Sequence[Segment], block_tokens: int, *, seed: int) -> tuple[int, ...]:
    """Return an id for each block of a prompt; a last one that is not full has its own.

    Two prompts have as many leading ids in common as there are whole blocks in the segments
    that both begin with. Ids have 63 bits; those of another seed are other ids.

    Cost: about a microsecond a block.
    """
    ids = []
    chain, start = _digest(b"", str(seed)), 0
    for name, n_tokens in segments:
        chain, end = _digest(chain, f"{name}/{n_tokens}"), start + n_tokens
        first = start // block_tokens + 1
        ids += [_id(chain, n * block_tokens) for n in range(first, end // block_tokens + 1)]
        start = end
    if start % block_tokens:
        ids.append(_id(chain, start))
    return tuple(ids)


def _digest(chain: bytes, text: str) -> bytes:
    return blake2b(text.encode(), key=chain, digest_size=_CHAIN_BYTES).digest()


def _id(chain: bytes, end: int) -> int:
    digest = blake2b(end.to_bytes(_ID_BYTES, "little"), key=chain, digest_size=_ID_BYTES).digest()
    return int.from_bytes(digest, "little") >> 1
