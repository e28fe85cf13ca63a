"""The parts that attention of a step is made of, for one layer group.

Each part is one call: some neighbouring rows, and keys that they see. A row may be in several
parts, never twice with the same key; together they are all that it sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prefixcache.engine.readers import Reader, Run, split_at_lead
from prefixcache.engine.sharing import shared_runs
from prefixcache.kv import KVStore, LayerGroup, Slots

COPIED_TOKENS = 256  # a run of one reader that is longer is read in place, a shorter one copied
SPARE_TOKENS = 256  # of padding that a call may have, beside half of what it really reads
UNSEEN = 2**62  # as a position: later than any row


class Mask:
    """Which keys each row sees, as what is added to their scores."""

    def __init__(self, seen: Tensor) -> None:
        """`seen`: bool [..., rows, keys]."""
        self._seen = seen
        self._biases: dict[tuple[int, torch.dtype], Tensor] = {}

    def over(self, columns: slice) -> Mask | None:
        """Return the mask of some of the keys; None: all rows see all of these."""
        seen = self._seen[..., columns]
        return None if bool(seen.all()) else Mask(seen)

    def bias(self, heads: int, dtype: torch.dtype) -> Tensor:
        """Return [..., rows * heads, keys]: 0 where a row sees a key, else the lowest number.

        A finite one: a row that sees nothing here gets a log-sum-exp that counts for nothing.
        It is made once a step, not once a layer.
        """
        if (heads, dtype) not in self._biases:
            hidden = ~self._seen.repeat_interleave(heads, dim=-2)
            zeros = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._biases[heads, dtype] = zeros.masked_fill_(hidden, torch.finfo(dtype).min)
        return self._biases[heads, dtype]


@dataclass(frozen=True, slots=True)
class RunPart:
    """A slice of the store that all of the rows see in full, whoever they belong to."""

    rows: slice
    slots: slice
    keys: Tensor | None = None  # where it is decoded, as long as `Kept.run` wants it
    values: Tensor | None = None


@dataclass(frozen=True, slots=True)
class TailPart:
    """What several readers of equally many rows see each for itself, in short runs.

    It is copied into rooms of equal length, so that one call serves all of them. What pads a room
    is the reader's own, so that no number of another request, not even NaN, gets in.
    """

    rows: slice
    n_readers: int
    slots: Slots  # n_readers * keys
    mask: Mask | None  # [n_readers, rows of each, keys]
    keys: Tensor  # [kv_heads, n_readers * keys, dim]: room for the copy, used by layer after layer
    values: Tensor


@dataclass(frozen=True, slots=True)
class OwnPart:
    """Rows that see one another causally; their keys are taken from the call."""

    rows: slice
    mask: Mask | None  # [rows, keys], causal; None: causal and nothing else


Part = RunPart | TailPart | OwnPart


def parts_of(readers: Sequence[Reader], store: KVStore, group: int) -> tuple[Part, ...]:
    """Return all parts of a layer group's attention: first those that most rows have in common.

    Cost: O(readers ** 2 + runs + copied tokens) on the host, once a step.
    """
    shape = store.layout.groups[group]
    leads, rest = split_at_lead(readers, shape.lead)
    return (
        *_stored_parts(leads, store, group),
        *_stored_parts(rest, store, group),
        *(_own_part(reader, shape, store.device) for reader in rest if reader.has_own),
    )


def _stored_parts(readers: Sequence[Reader], store: KVStore, group: int) -> list[Part]:
    """Return what readers read from the store."""
    shared = shared_runs(readers)
    parts: list[Part] = [
        RunPart(
            slice(readers[each.first].start_row, readers[each.stop - 1].stop_row),
            slice(each.run.start, each.run.stop),
        )
        for each in shared
    ]
    tails = []
    for index, reader in enumerate(readers):
        taken = [each.run for each in shared if each.first <= index < each.stop]
        in_place, tail = _sorted_out(reader, taken)
        parts += [RunPart(_rows(reader), slice(run.start, run.stop)) for run in in_place]
        tails.append(tail)
    for first, stop in _batches(readers, tails):
        parts.append(_tail_part(readers[first:stop], tails[first:stop], store, group))
    return parts


def _sorted_out(reader: Reader, taken: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Return which runs a reader reads alone in place, and which are copied.

    `taken`: what it shares, by position.
    """
    in_place, copied = [], []
    first = reader.oldest
    for end, following in [*((run.position, run.end) for run in taken), (reader.end, 0)]:
        for run in reader.between(first, end):
            clear = run.between(reader.clear, reader.clear_end)
            if clear.stop - clear.start <= COPIED_TOKENS:
                copied.append(run)
                continue
            in_place.append(clear)
            around = run.between(first, clear.position), run.between(clear.end, end)
            copied += [piece for piece in around if piece.start < piece.stop]
        first = following
    return in_place, copied


def _batches(
    readers: Sequence[Reader], tails: Sequence[Sequence[Run]]
) -> Iterator[tuple[int, int]]:
    """Yield neighbours with equally many rows whose tails are of like length, as (first, stop)."""
    first, longest, total = 0, 0, 0
    for index, (reader, tail) in enumerate(zip(readers, tails, strict=True)):
        n_keys = _n_tokens(tail)
        widest = max(longest, n_keys) * (index - first + 1)
        fits = widest <= (total + n_keys) * 3 // 2 + SPARE_TOKENS
        if total and not (n_keys and fits and reader.n_rows == readers[first].n_rows):
            yield first, index
            total = 0
        if not total:
            first, longest = index, 0
        longest, total = max(longest, n_keys), total + n_keys
    if total:
        yield first, len(readers)


def _tail_part(
    readers: Sequence[Reader], tails: Sequence[Sequence[Run]], store: KVStore, group: int
) -> RunPart | TailPart:
    rows = slice(readers[0].start_row, readers[-1].stop_row)
    longest = max(_n_tokens(tail) for tail in tails)
    slots, positions = [], []
    for tail in tails:
        padding = longest - _n_tokens(tail)
        slots += [slot for run in tail for slot in range(run.start, run.stop)]
        slots += [tail[0].start] * padding
        positions += [place for run in tail for place in range(run.position, run.end)]
        positions += [UNSEEN] * padding
    device = store.device
    first_rows = torch.tensor([reader.first for reader in readers], device=device)
    mask = _mask(
        first_rows[:, None] + torch.arange(readers[0].n_rows, device=device),
        torch.tensor(positions, device=device).view(len(readers), longest),
        store.layout.groups[group],
    )
    if mask is None and len(readers) == 1 and len(tails[0]) == 1:
        return RunPart(rows, slice(tails[0][0].start, tails[0][0].stop))
    shape = store.layout.groups[group]
    keys, values = (
        torch.empty(shape.kv_heads, len(slots), dim, dtype=store.layout.dtype, device=device)
        for dim in (shape.key_dim, shape.value_dim)
    )
    return TailPart(rows, len(readers), store.slots(slots), mask, keys, values)


def _own_part(reader: Reader, group: LayerGroup, device: torch.device) -> OwnPart:
    if group.window is None or reader.n_rows <= group.window:
        return OwnPart(_rows(reader), None)
    places = torch.arange(reader.first, reader.first + reader.n_rows, device=device)
    return OwnPart(_rows(reader), _mask(places, places, group))


def _mask(rows: Tensor, keys: Tensor, group: LayerGroup) -> Mask | None:
    """Return the mask of rows [..., n] over keys [..., k], all positions; None: all is seen."""
    distance = rows.unsqueeze(-1) - keys.unsqueeze(-2)
    seen = distance >= 0
    if group.window is not None:
        seen &= (distance < group.window) | (keys.unsqueeze(-2) < group.lead)
    return None if bool(seen.all()) else Mask(seen)


def _rows(reader: Reader) -> slice:
    return slice(reader.start_row, reader.stop_row)


def _n_tokens(runs: Sequence[Run]) -> int:
    return sum(run.stop - run.start for run in runs)
