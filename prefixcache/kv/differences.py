"""Keys that are kept as differences from a mean of those before them in their block."""

from __future__ import annotations

import torch
from torch import Tensor

from prefixcache.kv.codecs import Codec
from prefixcache.kv.kept import Kept
from prefixcache.kv.references import References
from prefixcache.kv.slots import FirstRows, Slots
from prefixcache.kv.turning import Turning


class Differences(Kept):
    """As `Kept`, but a row's own bits are its difference from its reference; see `References`.

    Whoever writes a slot has written the slots before it in its block, in this call or earlier.
    """

    __slots__ = ("_references",)

    def __init__(
        self,
        codec: Codec,
        planes: tuple[Tensor, ...],
        dim: int,
        dtype: torch.dtype,
        block_size_tokens: int,
        turning: Turning | None = None,
    ) -> None:
        super().__init__(codec, planes, dim, dtype, block_size_tokens, turning)
        self._references = References(dtype, planes[0].device)

    def write(self, slots: Slots, rows: Tensor) -> Tensor:
        """Write as `Kept.write`, in one round after another where rows refer to each other."""
        rows = self.turned(rows)
        read = rows.new_empty(rows.shape, dtype=self._dtype)
        for turn in slots.rounds:
            if turn.rows is None:
                return self._write_round(slots, rows)
            part = self._write_round(turn.slots, rows.index_select(1, turn.rows))
            read.index_copy_(1, turn.rows, part)
        return read

    def write_both(
        self, others: Kept, slots: Slots, rows: Tensor, other_rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write as `Kept.write_both`; encoded together is only what takes a single round."""
        if len(slots.rounds) > 1 or not self._is_like(others):
            return self.write(slots, rows), others.write(slots, other_rows)
        references = self._references_of(slots)
        both = torch.cat([self.turned(rows) - references, others.turned(other_rows)])
        read = self._write_joined(others, slots, both)
        return read[: self.kv_heads].add_(references), read[self.kv_heads :]

    def _write_round(self, slots: Slots, rows: Tensor) -> Tensor:
        references = self._references_of(slots)
        coded = self._codec.encode(rows - references)
        self._put(slots, coded)
        return self._codec.decode(coded, torch.empty_like(references)).add_(references)

    def _references_of(self, slots: Slots) -> Tensor:
        """Return the reference of each slot, [kv_heads, n, dim], from what is in the store."""
        first = slots.first_rows
        decoded = self._decoded_at(first.slots, self._room(None, len(first.slots)))
        return self._each(first, decoded)

    def _each(self, first: FirstRows, decoded: Tensor) -> Tensor:
        """Return the reference of each slot from its block's first rows, one after another."""
        means = self._references.of(decoded.view(self.kv_heads, -1, first.n_rows, self.dim))
        return means.flatten(1, 2).index_select(1, first.places)

    def _decoded_run(self, slots: slice, room: Tensor | None) -> Tensor:
        """Decode all blocks of a run: their first rows are needed, and few others are too many."""
        size = self._block_size
        start, stop = slots.start // size * size, -(-slots.stop // size) * size
        rows = super()._decoded_run(slice(start, stop), room)
        self._references.add_to(rows.view(self.kv_heads, -1, size, self.dim))
        return rows.narrow(1, slots.start - start, slots.stop - slots.start)

    def at(self, slots: Slots, room: Tensor | None = None) -> Tensor:
        """Read as `Kept.at`: first rows that are among the slots are not decoded twice."""
        rows, first = super().at(slots, room), slots.first_rows
        if first.among is None:
            return rows.add_(self._references_of(slots))
        return rows.add_(self._each(first, rows.index_select(1, first.among)))
