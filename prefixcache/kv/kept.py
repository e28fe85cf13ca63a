"""Keys or values of one layer, as the store keeps them and as attention reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from prefixcache.kv.codecs import Cast, Codec
from prefixcache.kv.turning import Turning


class Kept:
    """The planes of one layer's keys (or values), each [kv_heads, n_slots, width]."""

    __slots__ = ("_codec", "_dtype", "_planes", "_turning", "dim", "is_plain", "kv_heads")

    def __init__(
        self,
        codec: Codec,
        planes: tuple[Tensor, ...],
        dim: int,
        dtype: torch.dtype,
        turning: Turning | None = None,
    ) -> None:
        """`dtype`: of what is written and read. `turning`: of rows, before they are kept."""
        self._turning = turning
        self._codec, self._planes, self._dtype = codec, planes, dtype
        self.dim = dim
        self.kv_heads = planes[0].shape[0]
        self.is_plain = codec == Cast(dtype)  # what is read is a slice of what is kept

    def write(self, slots: Tensor, rows: Tensor) -> Tensor:
        """Keep the rows of t positions, and return them as they are read from now on.

        Args:
            slots: int64 [t], no slot twice.
            rows: [kv_heads, t, dim].
        """
        if self.is_plain:
            rows = rows.to(self._dtype)
            self._planes[0].index_copy_(1, slots, rows)
            return rows
        coded = self._codec.encode(self.turned(rows))
        self._put(slots, coded)
        return self._codec.decode(coded, rows.new_empty(rows.shape, dtype=self._dtype))

    def write_both(
        self, others: Kept, slots: Tensor, rows: Tensor, other_rows: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write as `write` does, here and to `others`: in half the calls where both are alike."""
        is_alike = self._codec == others._codec and self.dim == others.dim and not self.is_plain
        if not is_alike:
            return self.write(slots, rows), others.write(slots, other_rows)
        both = torch.cat([self.turned(rows), others.turned(other_rows)])
        coded = self._codec.encode(both)
        self._put(slots, [part[: self.kv_heads] for part in coded])
        others._put(slots, [part[self.kv_heads :] for part in coded])
        read = self._codec.decode(coded, both.new_empty(both.shape, dtype=self._dtype))
        return read[: self.kv_heads], read[self.kv_heads :]

    def _put(self, slots: Tensor, coded: Sequence[Tensor]) -> None:
        for plane, part in zip(self._planes, coded, strict=True):
            _bytes(plane).index_copy_(1, slots, _bytes(part))

    def turned(self, rows: Tensor) -> Tensor:
        """Return rows turned as those that are kept: what is multiplied with them must be."""
        return rows if self._turning is None else self._turning.turned(rows)

    def run(self, slots: slice, room: Tensor | None = None) -> Tensor:
        """Return the rows of consecutive slots, [kv_heads, n, dim].

        They lie in the store itself where that can be read as it is; else in `room`, if there is
        one, [kv_heads, n or more, dim].
        """
        n_slots = slots.stop - slots.start
        planes = [plane.narrow(1, slots.start, n_slots) for plane in self._planes]
        if self.is_plain:
            return planes[0]
        return self._codec.decode(planes, self._room(room, n_slots))

    def at(self, slots: Tensor, room: Tensor | None = None) -> Tensor:
        """Return copies of the rows of any slots, int64 [n]; as `run`, but never in the store."""
        if self.is_plain:
            out = self._room(room, len(slots))
            return torch.index_select(self._planes[0], 1, slots, out=out)
        planes = [_bytes(plane).index_select(1, slots).view(plane.dtype) for plane in self._planes]
        return self._codec.decode(planes, self._room(room, len(slots)))

    def _room(self, room: Tensor | None, n_slots: int) -> Tensor:
        if room is not None:
            return room.narrow(1, 0, n_slots)
        plane = self._planes[0]
        shape = (self.kv_heads, n_slots, self.dim)
        return torch.empty(shape, dtype=self._dtype, device=plane.device)


def _bytes(plane: Tensor) -> Tensor:
    """Return a plane as whole numbers where torch cannot move its kind of float about."""
    return plane.view(torch.uint8) if plane.dtype == torch.float8_e4m3fn else plane
