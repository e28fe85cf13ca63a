"""The plan of one forward: which tokens, where their KV goes, and what attention reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prefixcache.engine.parts import Part, parts_of
from prefixcache.engine.readers import Reader, Run, joined_runs, readers_of, runs_between
from prefixcache.engine.segments import Fed, FixedReads, fixed_reads
from prefixcache.engine.sharing import sharing_order
from prefixcache.engine.tiling import tiled
from prefixcache.kv import KVStore, Slots
from prefixcache.types import Span


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence, to be fed to the model.

    `tables` has, for each layer group, the runs that hold all positions up to the chunk's end,
    from block `first_blocks` of the sequence on: what a window has passed may lack. `leads` has
    those of the first positions, where these are not in the table.
    """

    token_ids: Sequence[int]
    first_position: int
    tables: tuple[Sequence[Span], ...]
    n_logits: int  # the last so many tokens' logits are wanted
    first_blocks: tuple[int, ...] = ()  # empty: every table begins at position 0
    leads: tuple[Sequence[Span], ...] = ()  # empty: no group has any apart
    adapter: str | None = None  # the load that its rows are computed with; None: the model alone


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One layer group's share of the plan."""

    slots: Slots  # t of them: where each row's KV is written
    parts: tuple[Part, ...]  # of attention; together all that the rows see
    fixed: FixedReads | None = None  # invariant mode's, in place of parts


@dataclass(frozen=True, slots=True)
class Step:
    """Everything that one forward needs, made once and read by every layer.

    The rows are the chunks' tokens, chunk after chunk: those of one adapter side by side, and of
    these those that share a prefix.
    """

    store: KVStore
    token_ids: Tensor  # int64 [1, t]
    positions: Tensor  # int64 [1, t]
    logit_rows: Tensor  # int64 [wanted logits], in the order in which the chunks were given
    groups: tuple[GroupStep, ...]
    adapters: tuple[tuple[str, slice], ...] = ()  # each load that is asked for, and its rows


def plan_step(
    chunks: Sequence[Chunk], store: KVStore, device: torch.device, *, invariant: bool = False
) -> Step:
    """Pack chunks side by side and work out what each row sees and what is read for it.

    With `invariant` attention reads in fixed tiles and segments (`engine/segments.py`).

    Cost: O(tokens + runs + chunks ** 2) on the host, for each layer group, once a step.
    """
    tables = [
        [_runs(chunk, group, store) for chunk in chunks]
        for group in range(len(store.layout.groups))
    ]
    order = _side_by_side(chunks, sharing_order(tables[_widest_group(store)]))
    packed = [chunks[index] for index in order]
    token_ids = [token for chunk in packed for token in chunk.token_ids]
    positions = [place for chunk in packed for place in _positions(chunk)]
    return Step(
        store=store,
        token_ids=torch.tensor([token_ids], device=device),
        positions=torch.tensor([positions], device=device),
        logit_rows=torch.tensor(_logit_rows(chunks, order), dtype=torch.int64, device=device),
        groups=tuple(
            _plan_group(store, group, packed, [runs[index] for index in order], invariant=invariant)
            for group, runs in enumerate(tables)
        ),
        adapters=_adapter_rows(packed),
    )


def _plan_group(
    store: KVStore,
    group: int,
    chunks: Sequence[Chunk],
    tables: Sequence[tuple[Run, ...]],
    *,
    invariant: bool,
) -> GroupStep:
    window = store.layout.groups[group].window
    slots: list[int] = []
    readers: list[Reader] = []
    fed: list[Fed] = []
    for chunk, runs in zip(chunks, tables, strict=True):
        places = _positions(chunk)
        fed.append(Fed(places.start, len(places), len(slots), runs))
        readers.extend(readers_of(runs, window, places.start, len(places), len(slots)))
        for run in runs_between(runs, places.start, places.stop):
            slots.extend(range(run.start, run.stop))
        assert len(slots) == readers[-1].stop_row, "a chunk lies beyond its own blocks"
    written = store.slots(slots)
    if invariant:
        return GroupStep(written, (), fixed_reads(fed, store, group))
    return GroupStep(written, tiled(parts_of(readers, store, group), store, group))


def _runs(chunk: Chunk, group: int, store: KVStore) -> tuple[Run, ...]:
    first_block = chunk.first_blocks[group] if chunk.first_blocks else 0
    size = store.layout.block_size_tokens
    runs = joined_runs(chunk.tables[group], size, first_block)
    return (*joined_runs(chunk.leads[group], size), *runs) if chunk.leads else runs


def _side_by_side(chunks: Sequence[Chunk], order: list[int]) -> list[int]:
    """Return `order` with the chunks of each adapter together, so that its rows are one slice.

    What shares a prefix has the same adapter, and stays together.
    """
    if all(chunk.adapter is None for chunk in chunks):
        return order
    firsts: dict[str | None, int] = {}
    for index in order:
        firsts.setdefault(chunks[index].adapter, len(firsts))
    return sorted(order, key=lambda index: firsts[chunks[index].adapter])


def _adapter_rows(packed: Sequence[Chunk]) -> tuple[tuple[str, slice], ...]:
    rows: dict[str, slice] = {}
    stop = 0
    for chunk in packed:
        start, stop = stop, stop + len(chunk.token_ids)
        if chunk.adapter is not None:
            first = rows.get(chunk.adapter, slice(start, stop))
            rows[chunk.adapter] = slice(first.start, stop)
    return tuple(rows.items())


def _positions(chunk: Chunk) -> range:
    return range(chunk.first_position, chunk.first_position + len(chunk.token_ids))


def _logit_rows(chunks: Sequence[Chunk], order: Sequence[int]) -> list[int]:
    """Return the packed rows of all wanted logits, chunk by chunk as they were given."""
    rows: dict[int, range] = {}
    stop = 0
    for index in order:
        stop += len(chunks[index].token_ids)
        rows[index] = range(stop - chunks[index].n_logits, stop)
    return [row for index in range(len(chunks)) for row in rows[index]]


def _widest_group(store: KVStore) -> int:
    """Return the group whose rows see most: what is shared there is shared in all."""
    windows = [group.window for group in store.layout.groups]
    return windows.index(None) if None in windows else 0
