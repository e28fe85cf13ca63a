"""Keys or values of one layer, as the store keeps them and as attention reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from prefixcache.kv.codecs import Cast, Codec
from prefixcache.kv.slots import Slots
from prefixcache.kv.turning import Turning


class Kept:
    """The planes of one layer's keys (or values), each [kv_heads, n_slots, width]."""

    __slots__ = (
        "_block_size",
        "_codec",
        "_dtype",
        "_planes",
        "_turning",
        "dim",
        "is_plain",
        "kv_heads",
    )

    def __init__(
        self,
        codec: Codec,
        planes: tuple[Tensor, ...],
        dim: int,
        dtype: torch.dtype,
        block_size_tokens: int,
        turning: Turning | None = None,
    ) -> None:
        """`dtype`: of what is written and read. `turning`: of rows, before they are kept."""
        self._turning = turning
        self._block_size = block_size_tokens
        self._codec, self._planes, self._dtype = codec, planes, dtype
        self.dim = dim
        self.kv_heads = planes[0].shape[0]
        self.is_plain = codec == Cast(dtype)  # what is read is a slice of what is kept

    def write(self, slots: Slots, rows: Tensor) -> Tensor:
        """Keep the rows of t positions, and return them as they are read from now on.

        Args:
            slots: t of them, none twice.
            rows: [kv_heads, t, dim].
        """
        if self.is_plain:
            rows = rows.to(self._dtype)
            self._planes[0].index_copy_(1, slots.index, rows)
            return rows
        coded = self._codec.encode(self.turned(rows))
        self._put(slots, coded)
        return self._codec.decode(coded, rows.new_empty(rows.shape, dtype=self._dtype))

    def write_both(
        self, others: Kept, slots: Slots, rows: Tensor, other_rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write as `write` does, here and to `others`: in half the calls where both are alike."""
        if not self._is_like(others):
            return self.write(slots, rows), others.write(slots, other_rows)
        both = torch.cat([self.turned(rows), others.turned(other_rows)])
        read = self._write_joined(others, slots, both)
        return read[: self.kv_heads], read[self.kv_heads :]

    def _is_like(self, others: Kept) -> bool:
        return self._codec == others._codec and self.dim == others.dim and not self.is_plain

    def _write_joined(self, others: Kept, slots: Slots, both: Tensor) -> Tensor:
        """Keep rows of two kinds, one after the other in the first dimension, as they are."""
        coded = self._codec.encode(both)
        self._put(slots, [part[: self.kv_heads] for part in coded])
        others._put(slots, [part[self.kv_heads :] for part in coded])
        return self._codec.decode(coded, both.new_empty(both.shape, dtype=self._dtype))

    def _put(self, slots: Slots, coded: Sequence[Tensor]) -> None:
        for plane, part in zip(self._planes, coded, strict=True):
            _bytes(plane).index_copy_(1, slots.index, _bytes(part))

    def turned(self, rows: Tensor) -> Tensor:
        """Return rows turned as those that are kept: what is multiplied with them must be."""
        return rows if self._turning is None else self._turning.turned(rows)

    def run(self, slots: slice, room: Tensor | None = None) -> Tensor:
        """Return the rows of consecutive slots, [kv_heads, n, dim].

        They lie in the store itself where that can be read as it is; else in `room`, if there is
        one, [kv_heads, rows, dim]: of as many rows as the blocks have that the slots lie in.
        """
        if self.is_plain:
            return self._planes[0].narrow(1, slots.start, slots.stop - slots.start)
        return self._decoded_run(slots, room)

    def at(self, slots: Slots, room: Tensor | None = None) -> Tensor:
        """Return copies of the rows of any slots; as `run`, but never in the store.

        `room`: [kv_heads, n or more, dim].
        """
        if self.is_plain:
            out = self._room(room, len(slots))
            return torch.index_select(self._planes[0], 1, slots.index, out=out)
        return self._decoded_at(slots.index, self._room(room, len(slots)))

    def _decoded_run(self, slots: slice, room: Tensor | None) -> Tensor:
        n_slots = slots.stop - slots.start
        planes = [plane.narrow(1, slots.start, n_slots) for plane in self._planes]
        return self._codec.decode(planes, self._room(room, n_slots))

    def _decoded_at(self, index: Tensor, out: Tensor) -> Tensor:
        planes = [_bytes(plane).index_select(1, index).view(plane.dtype) for plane in self._planes]
        return self._codec.decode(planes, out)

    def _room(self, room: Tensor | None, n_slots: int) -> Tensor:
        if room is not None:
            return room.narrow(1, 0, n_slots)
        plane = self._planes[0]
        shape = (self.kv_heads, n_slots, self.dim)
        return torch.empty(shape, dtype=self._dtype, device=plane.device)


def _bytes(plane: Tensor) -> Tensor:
    """Return a plane as whole numbers where torch cannot move its kind of float about."""
    return plane.view(torch.uint8) if plane.dtype == torch.float8_e4m3fn else plane
