"""Records' parts as rows of tensors."""

from __future__ import annotations

import random

import torch

from prefixcache.engine.tiers.rows import in_rows
from prefixcache.index import Packed

N_BYTES = 6


def framed(n_parts: int, gap: int, rng: random.Random) -> list[Packed]:
    """Return parts that lie in one buffer with `gap` bytes between them."""
    buffer = memoryview(bytearray(rng.randbytes(n_parts * (N_BYTES + gap))))
    starts = range(gap, len(buffer), N_BYTES + gap)
    return [buffer[start : start + N_BYTES] for start in starts]


def test_rows_are_the_parts_in_order() -> None:
    """Whatever mixture of buffers, distances, and bytes that nobody may write to they come in."""
    rng = random.Random(3)
    for _ in range(200):
        parts: list[Packed] = []
        for _ in range(rng.randrange(1, 5)):
            some = framed(rng.randrange(1, 5), rng.randrange(4), rng)
            rng.shuffle(some) if rng.random() < 0.3 else None
            parts += [bytes(part) for part in some] if rng.random() < 0.3 else some
        rows = torch.cat(list(in_rows(parts)))
        assert [bytes(row.tolist()) for row in rows] == [bytes(part) for part in parts]


def test_what_was_read_in_one_is_not_copied() -> None:
    """It is one tensor, which shows what is written to the buffer later."""
    parts = framed(5, 3, random.Random(4))
    (rows,) = in_rows(parts)
    last = parts[-1]
    assert isinstance(last, memoryview)
    last[0] ^= 255
    assert rows[4, 0] == last[0]
