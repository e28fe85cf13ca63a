"""Formats of KV for tests, and stores that hold what nobody may read."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

KV_FORMATS = ("float16", "bfloat16", "fp8", "int8", "int4")  # beside the model's own
CPU_FORMATS = tuple(name for name in KV_FORMATS if name != "fp8")  # that a CPU serves


def spoil(planes: Iterable[Tensor]) -> None:
    """Make all numbers NaN: themselves where they can be, else by their scales."""
    for plane in planes:
        if plane.dtype.is_floating_point:
            plane.fill_(torch.nan)
        else:
            plane.fill_(77)
