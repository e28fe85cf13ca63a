"""Parts of attention cut so short that what they read can be decoded into one small room.

Where the store keeps other numbers than attention multiplies, each part decodes its keys and values
into a room that all parts of a layer group use one after another, in every layer. So however
long a context is, no more than TILE_KEYS positions of it, or a block, are ever decoded at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from prefixcache.engine.parts import Part, RunPart, TailPart
from prefixcache.kv import KVStore, Slots

TILE_KEYS = 1024  # that are decoded at a time, or one of each request of a call


def tiled(parts: Sequence[Part], store: KVStore, group: int) -> tuple[Part, ...]:
    """Return parts that see the same and fit into one room, or `parts` where none is needed."""
    if store.is_plain:
        return tuple(parts)
    shape, layout = store.layout.groups[group], store.layout
    size = layout.block_size_tokens
    short = [piece for part in parts for piece in _pieces(part, size)]
    n_keys = max((_n_keys(piece, size) for piece in short), default=0)
    keys, values = (
        torch.empty(shape.kv_heads, n_keys, dim, dtype=layout.dtype, device=store.device)
        for dim in (shape.key_dim, shape.value_dim)
    )
    return tuple(
        replace(piece, keys=keys, values=values) if isinstance(piece, RunPart | TailPart) else piece
        for piece in short
    )


def _pieces(part: Part, block_size: int) -> Iterator[Part]:
    if isinstance(part, RunPart):
        for slots in _run_pieces(part.slots, block_size):
            yield replace(part, slots=slots)
    elif isinstance(part, TailPart):
        yield from _tail_pieces(part, block_size)
    else:
        yield part


def _run_pieces(slots: slice, block_size: int) -> Iterator[slice]:
    """Cut a run between blocks, so that none is decoded twice."""
    covered = _blocks(slots, block_size)
    for blocks in _evenly(covered.stop - covered.start, max(TILE_KEYS // block_size, 1)):
        first, stop = covered.start + blocks.start, covered.start + blocks.stop
        yield slice(max(slots.start, first * block_size), min(slots.stop, stop * block_size))


def _blocks(slots: slice, block_size: int) -> slice:
    """Return the blocks that slots lie in."""
    return slice(slots.start // block_size, -(-slots.stop // block_size))


def _tail_pieces(part: TailPart, block_size: int) -> Iterator[TailPart]:
    """Yield a tail's keys, so many of each reader at a time.

    A row that sees nothing of a piece counts it for nothing, as everywhere.
    """
    slots = part.slots.index.view(part.n_readers, -1)
    for columns in _evenly(slots.shape[1], max(TILE_KEYS // part.n_readers, 1)):
        mask = None if part.mask is None else part.mask.over(columns)
        piece = Slots(slots[:, columns].reshape(-1), block_size, slots.device)
        yield replace(part, slots=piece, mask=mask)


def _evenly(n_keys: int, most: int) -> Iterator[slice]:
    """Yield pieces of like length, so that no call is made for a rest of a few keys."""
    n_pieces = -(-n_keys // most)
    for index in range(n_pieces):
        yield slice(n_keys * index // n_pieces, n_keys * (index + 1) // n_pieces)


def _n_keys(part: Part, block_size: int) -> int:
    """Return how many rows the room of a part has: a run is decoded by whole blocks."""
    if isinstance(part, RunPart):
        blocks = _blocks(part.slots, block_size)
        return int(blocks.stop - blocks.start) * block_size
    return len(part.slots) if isinstance(part, TailPart) else 0
