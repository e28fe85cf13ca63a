"""How the numbers of a key or a value become bytes, one position and head at a time.

No codec looks beyond the row that it is given, so its bytes depend on neither chunks nor
neighbours, and a part of a block can be copied by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

_MOST_INT8 = 127
LEAST_SCALE, MOST_SCALE = 2.0**-24, 65504.0  # in float16; nothing is divided by 0


class Plane(NamedTuple):
    """Numbers of one kind that are kept for each position and head."""

    dtype: torch.dtype
    width: int

    @property
    def n_bytes(self) -> int:
        """Bytes of one position and head."""
        return self.dtype.itemsize * self.width


class Codec(Protocol):
    """Turns rows into planes and back.

    The caller promises rows whose numbers lie side by side, and finite ones; NaN stays NaN, so that
    it is seen. The codec promises that rows do not depend on each other, that a row of zeros stays
    one, and that what is too large for a plane becomes the largest that it can hold.
    """

    def planes(self, dim: int) -> tuple[Plane, ...]:
        """Return what is kept of a row of `dim` numbers."""

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the planes [..., width] of rows [..., dim]."""

    def decode(self, planes: Sequence[Tensor], out: Tensor) -> Tensor:
        """Write rows [..., dim] to `out`, in its dtype, and return it."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Each number rounded to a shorter kind of float."""

    dtype: torch.dtype

    def planes(self, dim: int) -> tuple[Plane, ...]:
        """One: the numbers."""
        return (Plane(self.dtype, dim),)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Round; what is too large for the kind becomes its largest."""
        if self.dtype in (torch.float32, torch.bfloat16, rows.dtype):
            return (rows.to(self.dtype),)
        most = torch.finfo(self.dtype).max
        return (rows.clamp(-most, most).to(self.dtype),)

    def decode(self, planes: Sequence[Tensor], out: Tensor) -> Tensor:
        """Exact where `out` is no shorter."""
        return out.copy_(planes[0])


@dataclass(frozen=True, slots=True)
class Int8:
    """Whole numbers from -127 to 127 and a scale in float16, one for the row.

    A number is off by half a scale at most, which is a 254th of the row's largest.
    """

    def planes(self, dim: int) -> tuple[Plane, ...]:
        """The whole numbers, and the scale."""
        return Plane(torch.int8, dim), Plane(torch.float16, 1)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Round by the scale as it is kept. NaN shows in the scale."""
        largest = torch.linalg.vector_norm(rows.float(), torch.inf, -1, keepdim=True)
        scales = largest.div_(_MOST_INT8).clamp_(LEAST_SCALE, MOST_SCALE).half()
        codes = rows.div(scales.float()).round_().clamp_(-_MOST_INT8, _MOST_INT8)
        return codes.to(torch.int8), scales

    def decode(self, planes: Sequence[Tensor], out: Tensor) -> Tensor:
        """Return whole numbers times their scale, rounded once."""
        codes, scales = planes
        return out.copy_(codes).mul_(scales.to(out.dtype))
