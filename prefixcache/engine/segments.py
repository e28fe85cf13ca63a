"""What attention reads in invariant mode, cut at fixed positions whatever the step is made of.

Rows go in tiles and keys in segments, both counted from position 0 of their sequence:

    position   0   1   2   3 | 4   5   6   7 | ...        tile = position // TILE_TOKENS
               0 ................... 255 | 256 ...        segment = position // SEGMENT_TOKENS

A kernel call has one tile and one segment as its innermost shape, a row always has the same place
in its tile and a key in its segment. Neither depends on chunks, blocks, neighbours or the cache.
Rows that a chunk lacks of a tile repeat its nearest row; keys that are not there, or that no
row may see yet, are masked and count for exactly nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from prefixcache.engine.parts import Mask
from prefixcache.engine.readers import Run, runs_between
from prefixcache.kv import KVStore, Slots

TILE_TOKENS = 4  # with one head a key head, rows of a kernel call: fewer are another kernel's
SEGMENT_TOKENS = 256
_ALIGNED_BYTES = 64  # of what is read in place: where a vector starts may choose the kernel


class Fed(NamedTuple):
    """A chunk as attention sees it: consecutive positions in consecutive packed rows."""

    first: int  # position
    n_rows: int
    start_row: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """Some neighbouring tiles, and one segment of keys for all or one for each of them."""

    tiles: slice
    slots: slice | Slots  # read in place, or [n_sources * SEGMENT_TOKENS] to be copied
    n_sources: int  # 1, or one for each tile
    mask: Mask | None  # [tiles, TILE_TOKENS, SEGMENT_TOKENS]; None: all is seen


@dataclass(frozen=True, slots=True)
class FixedReads:
    """All that attention of a step reads for one layer group, segments in order of position."""

    gather: Tensor  # int64 [tiles * TILE_TOKENS]: the packed row in each place
    places: Tensor  # int64 [t]: each packed row's place
    parts: tuple[SegmentPart, ...]


class _Tile(NamedTuple):
    """The rows of a tile that there are: positions first..last of a chunk."""

    place: int  # among the tiles of the step
    first: int
    last: int


class _Reading(NamedTuple):
    """Tiles of a chunk that see a segment, and where it lies up to the chunk's end."""

    tiles: tuple[_Tile, ...]
    runs: tuple[Run, ...]
    is_masked: bool


def fixed_reads(chunks: Sequence[Fed], store: KVStore, group: int) -> FixedReads:
    """Plan attention of packed chunks; see the module.

    Cost: O(tiles * segments + copied tokens) on the host, once a step and group.
    """
    gather: list[int] = []
    places: list[int] = []
    tiled = []
    for chunk in chunks:
        tiles = tuple(_tiles(chunk, len(gather) // TILE_TOKENS))
        tiled.append((chunk, tiles))
        begin = chunk.first // TILE_TOKENS * TILE_TOKENS
        places += range(
            len(gather) + chunk.first - begin, len(gather) + chunk.first - begin + chunk.n_rows
        )
        last = chunk.first + chunk.n_rows - 1
        gather += [
            chunk.start_row + min(max(place, chunk.first), last) - chunk.first
            for place in range(begin, begin + len(tiles) * TILE_TOKENS)
        ]
    window = store.layout.groups[group].window
    end = max(chunk.first + chunk.n_rows for chunk in chunks)
    parts = [
        _part(readings, start, store, group)
        for start in range(0, end, SEGMENT_TOKENS)
        for readings in _batches(list(_readings(tiled, start, window)), store, group)
    ]
    device = store.device
    return FixedReads(
        torch.tensor(gather, device=device), torch.tensor(places, device=device), tuple(parts)
    )


def _tiles(chunk: Fed, first_index: int) -> Iterator[_Tile]:
    stop = chunk.first + chunk.n_rows
    begin = chunk.first // TILE_TOKENS * TILE_TOKENS
    for index, place in enumerate(range(begin, stop, TILE_TOKENS), start=first_index):
        yield _Tile(index, max(place, chunk.first), min(place + TILE_TOKENS, stop) - 1)


def _readings(
    tiled: Sequence[tuple[Fed, tuple[_Tile, ...]]], start: int, window: int | None
) -> Iterator[_Reading]:
    """Yield who reads the segment from position `start`: tiles that see all of it stay apart."""
    stop = start + SEGMENT_TOKENS
    for chunk, tiles in tiled:
        runs = tuple(runs_between(chunk.runs, start, min(stop, chunk.first + chunk.n_rows)))
        seeing = [
            (tile, tile.first < stop - 1 or (window is not None and tile.last - window >= start))
            for tile in tiles
            if tile.last >= start and (window is None or tile.first - window < stop - 1)
        ]
        begin = 0
        for index in range(1, len(seeing) + 1):
            if index == len(seeing) or seeing[index][1] != seeing[begin][1]:
                part = tuple(tile for tile, _ in seeing[begin:index])
                yield _Reading(part, runs, seeing[begin][1])
                begin = index


def _batches(
    readings: Sequence[_Reading], store: KVStore, group: int
) -> Iterator[tuple[_Reading, ...]]:
    """Yield neighbours that one call can serve: one source for all, or one for each tile."""
    batch: list[_Reading] = []
    for reading in readings:
        if batch and not _go_together(batch, reading, store, group):
            yield tuple(batch)
            batch = []
        batch.append(reading)
    if batch:
        yield tuple(batch)


def _go_together(batch: Sequence[_Reading], new: _Reading, store: KVStore, group: int) -> bool:
    first, last = batch[0], batch[-1]
    if last.tiles[-1].place + 1 != new.tiles[0].place or last.is_masked != new.is_masked:
        return False
    is_shared = all(each.runs == first.runs for each in batch)
    if is_shared and new.runs == first.runs:
        return True
    if is_shared and len(batch) > 1:
        return False
    each = (*batch, new)
    return all(len(one.tiles) == 1 and not _in_place(one, store, group) for one in each)


def _in_place(reading: _Reading, store: KVStore, group: int) -> bool:
    """Whether a segment lies in one run that begins where a copy of it would."""
    run, *others = reading.runs
    if not store.is_plain or others or run.stop - run.start != SEGMENT_TOKENS:
        return False
    shape = store.layout.groups[group]
    n_slots = store.n_blocks * store.layout.block_size_tokens
    return all(
        number * dim * store.layout.dtype.itemsize % _ALIGNED_BYTES == 0
        for dim in (shape.key_dim, shape.value_dim)
        for number in (run.start, n_slots)
    )


def _part(readings: Sequence[_Reading], start: int, store: KVStore, group: int) -> SegmentPart:
    tiles = [tile for reading in readings for tile in reading.tiles]
    span = slice(tiles[0].place, tiles[-1].place + 1)
    is_shared = all(each.runs == readings[0].runs for each in readings)
    sources = readings[:1] if is_shared else readings
    mask = _mask(tiles, start, store, group) if readings[0].is_masked else None
    if is_shared and _in_place(readings[0], store, group):
        run = readings[0].runs[0]
        return SegmentPart(span, slice(run.start, run.stop), 1, mask)
    slots = [slot for reading in sources for slot in _padded_slots(reading.runs)]
    return SegmentPart(span, store.slots(slots), len(sources), mask)


def _padded_slots(runs: Sequence[Run]) -> list[int]:
    """Return the slots of a segment. What pads it is its own, so no other request's gets in."""
    slots = [slot for run in runs for slot in range(run.start, run.stop)]
    return slots + slots[:1] * (SEGMENT_TOKENS - len(slots))


def _mask(tiles: Sequence[_Tile], start: int, store: KVStore, group: int) -> Mask:
    rows = torch.tensor(
        [
            [
                min(max(tile.last // TILE_TOKENS * TILE_TOKENS + offset, tile.first), tile.last)
                for offset in range(TILE_TOKENS)
            ]
            for tile in tiles
        ],
        device=store.device,
    )
    keys = torch.arange(start, start + SEGMENT_TOKENS, device=store.device)
    distance = rows.unsqueeze(-1) - keys
    seen = distance >= 0
    window = store.layout.groups[group].window
    if window is not None:
        seen &= distance < window
    return Mask(seen)
