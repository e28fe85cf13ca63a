"""The plan of one forward: which tokens, where their KV goes, and what each row sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prefixcache.kv import KVStore, LayerGroup
from prefixcache.types import Span


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence, to be fed to the model.

    `tables` has, for each layer group, the runs that hold positions 0 to the chunk's end.
    """

    token_ids: Sequence[int]
    first_position: int
    tables: tuple[Sequence[Span], ...]
    n_logits: int  # of its last so many tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """Keys that a chunk's rows see: a slice of the store, or the chunk's own new keys."""

    start: int  # slots
    stop: int
    mask: Tensor | None = None  # bool [rows, keys]; None: all of them (own keys: causally)


@dataclass(frozen=True, slots=True)
class Rows:
    """The packed rows of one chunk and what they see."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]
    own: Piece | None  # None: the chunk's only token is read back from the store


@dataclass(frozen=True, slots=True)
class GroupStep:
    """One layer group's share of the plan."""

    slots: Tensor  # int64 [t]: where each row's KV is written
    rows: tuple[Rows, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Everything that one forward needs, made once and read by every layer."""

    store: KVStore
    token_ids: Tensor  # int64 [1, t]
    positions: Tensor  # int64 [1, t]
    logit_rows: Tensor  # int64 [the chunks' n_logits], in their order
    groups: tuple[GroupStep, ...]


def plan_step(chunks: Sequence[Chunk], store: KVStore, device: torch.device) -> Step:
    """Pack chunks one after another and work out what each sees.

    Cost: O(tokens + runs) on the host, for each layer group, once a step.
    """
    token_ids = [token for chunk in chunks for token in chunk.token_ids]
    positions = [
        position
        for chunk in chunks
        for position in range(chunk.first_position, chunk.first_position + len(chunk.token_ids))
    ]
    logit_rows: list[int] = []
    end = 0
    for chunk in chunks:
        end += len(chunk.token_ids)
        logit_rows.extend(range(end - chunk.n_logits, end))
    return Step(
        store=store,
        token_ids=torch.tensor([token_ids], device=device),
        positions=torch.tensor([positions], device=device),
        logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
        groups=tuple(
            _plan_group(index, group, chunks, store.layout.block_size_tokens, device)
            for index, group in enumerate(store.layout.groups)
        ),
    )


def _plan_group(
    index: int, group: LayerGroup, chunks: Sequence[Chunk], block_size: int, device: torch.device
) -> GroupStep:
    slots: list[int] = []
    rows: list[Rows] = []
    for chunk in chunks:
        n = len(chunk.token_ids)
        table = chunk.tables[index]
        for _, start, stop in _runs(table, block_size, chunk.first_position, n):
            slots.extend(range(start, stop))
        rows.append(_plan_rows(chunk, table, group.window, len(slots) - n, block_size, device))
    return GroupStep(slots=torch.tensor(slots, device=device), rows=tuple(rows))


def _plan_rows(
    chunk: Chunk,
    table: Sequence[Span],
    window: int | None,
    start_row: int,
    block_size: int,
    device: torch.device,
) -> Rows:
    n = len(chunk.token_ids)
    first = chunk.first_position
    past_end = first + 1 if n == 1 else first  # one token alone is read back from the store
    oldest = 0 if window is None else max(0, first - window + 1)
    pieces = tuple(
        Piece(start, stop, _window_mask(first, n, position, stop - start, window, device))
        for position, start, stop in _runs(table, block_size, oldest, past_end - oldest)
    )
    own = None
    if n > 1:
        mask = None
        if window is not None and n > window:
            seen = _window_mask(first, n, first, n, window, device)
            assert seen is not None
            mask = seen.tril()
        own = Piece(0, n, mask)
    return Rows(start_row, start_row + n, pieces, own)


def _window_mask(
    first_row: int,
    n_rows: int,
    first_key: int,
    n_keys: int,
    window: int | None,
    device: torch.device,
) -> Tensor | None:
    """Return which keys are within each row's window, or None when all of them are."""
    if window is None or first_row + n_rows - 1 - first_key < window:
        return None
    row = torch.arange(first_row, first_row + n_rows, device=device)[:, None]
    key = torch.arange(first_key, first_key + n_keys, device=device)[None, :]
    return row - key < window


def _runs(
    table: Sequence[Span], block_size: int, first: int, n: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (position, first slot, end slot) of the runs that hold positions first..first+n-1."""
    position, end = 0, first + n
    for span in table:
        length = span.n_blocks * block_size
        low, high = max(position, first), min(position + length, end)
        if low < high:
            base = span.first * block_size - position
            yield low, base + low, base + high
        position += length
        if position >= end:
            return
    assert position >= end, "a chunk lies beyond its own blocks"
