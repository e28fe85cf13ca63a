"""Numbers of 4 bits, in groups with a smallest number and a step of their own.

codes   | dim 0 and dim w | dim 1 and dim w + 1 | ...    w bytes: low and high half of each
ranges  | smallest, step of group 0 | of group 1 | ...   float16
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prefixcache.kv.codecs import LEAST_SCALE, Plane

_MOST_CODE = 15
_MOST = 32752.0  # half of float16's largest, so that a range has a step
_HALVES = 0x0F0F  # the low half of each of two bytes


@dataclass(frozen=True, slots=True)
class Int4:
    """16 even steps from the smallest to the largest of a group.

    A group is as many neighbours as divide a row evenly, `most_group` at most. A number is off by
    half a step, and by what float16 rounds of the smallest.
    """

    most_group: int = 32

    def planes(self, dim: int) -> tuple[Plane, ...]:
        """The codes, two in a byte, and each group's range."""
        n_groups = dim // self._group(dim)
        return Plane(torch.uint8, -(-dim // 2)), Plane(torch.float16, 2 * n_groups)

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Round by the range as it is kept. NaN shows in the range."""
        group = self._group(rows.shape[-1])
        groups = rows.float().clamp(-_MOST, _MOST)
        groups = groups.view(*rows.shape[:-1], rows.shape[-1] // group, group)
        lowest, highest = torch.aminmax(groups, dim=-1, keepdim=True)
        lowest = lowest.half()
        steps = (highest - lowest).div_(_MOST_CODE).clamp_min_(LEAST_SCALE).half()
        codes = (groups - lowest).div_(steps.float()).round_().clamp_(0, _MOST_CODE)
        ranges = torch.cat([lowest, steps], -1).flatten(-2)
        return _packed(codes.to(torch.uint8).flatten(-2)), ranges

    def decode(self, planes: Sequence[Tensor], out: Tensor) -> Tensor:
        """Return codes times their step, beside the smallest."""
        codes, ranges = planes
        out.copy_(_unpacked(codes)[..., : out.shape[-1]])
        n_groups = ranges.shape[-1] // 2
        wide = ranges.to(out.dtype).view(*ranges.shape[:-1], n_groups, 2)
        groups = out.view(*out.shape[:-1], n_groups, out.shape[-1] // n_groups)
        groups.mul_(wide[..., 1:]).add_(wide[..., :1])
        return out

    def _group(self, dim: int) -> int:
        return max(n for n in range(1, min(dim, self.most_group) + 1) if dim % n == 0)


def _packed(codes: Tensor) -> Tensor:
    if codes.shape[-1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return torch.add(codes[..., 0::2], codes[..., 1::2], alpha=16)


def _unpacked(packed: Tensor) -> Tensor:
    """Return codes [..., 2 * width]: each byte's low half, then its high half."""
    wide = packed.to(torch.int16)
    return wide.mul(16).bitwise_or_(wide).bitwise_and_(_HALVES).view(torch.uint8)
