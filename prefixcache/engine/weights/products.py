"""Products of rows with one fixed matrix, packed once in the form that its kernel reads fastest.

Every product takes float32 rows and gives float32 rows. They differ in what is kept of the
matrix and in how the rows are rounded on their way in (prefixcache/design/0010-packed-weights.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

WeightKind = Literal["float32", "float16", "bfloat16", "int8"]

_ROUNDER = float(2**23)  # a float32 from here to twice it is an integer: its low bits spell it
_LEAST_PEAK = 1e-30  # of a row of zeros, so that nothing is divided by 0
_EXACT_ROWS = 16  # up to here each number of rows has a kernel of its own


class Product(Protocol):
    """Multiplies rows with its matrix.

    The caller gives float32 [n, in_features], n from 1. The product gives a new float32
    [n, out_features], the bias added, and changes nothing of the rows.
    """

    def __call__(self, rows: Tensor) -> Tensor:
        """Return rows @ weight.T + bias."""


def kernel_rows(n_rows: int) -> int:
    """Return for how many rows a kernel is asked where there are `n_rows`: some more, if many.

    oneDNN compiles a kernel for each number of rows, half a megabyte that it keeps. There are at
    most eight sizes to a doubling, and 68 up to 2,048 rows.
    """
    if n_rows <= _EXACT_ROWS:
        return n_rows
    step = max(4, 1 << ((n_rows - 1).bit_length() - 4))
    return -(-n_rows // step) * step


def _filled(rows: Tensor) -> Tensor:
    """Return the rows [n, in_features] and zeros after them, `kernel_rows(n)` in all."""
    missing = kernel_rows(len(rows)) - len(rows)
    return functional.pad(rows, (0, 0, 0, missing)) if missing else rows


class PlainProduct:
    """torch's own float32 product; it keeps the weight as it is."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, rows: Tensor) -> Tensor:
        """See `Product`."""
        return functional.linear(rows, self._weight, self._bias)


class OneDnnProduct:
    """oneDNN's product with a weight in its own order, float32 or bfloat16.

    With bfloat16 the rows are rounded to 8 bits of precision as well; sums are float32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype))
        self._bias = None if bias is None else bias.to(dtype)

    def __call__(self, rows: Tensor) -> Tensor:
        """See `Product`."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            _filled(rows.to(self._dtype)), self._weight, self._bias, "none", [], ""
        )
        return product[: len(rows)].float()


class HalfProduct:
    """fbgemm's product with a float16 weight; the rows and the sums stay float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)

    def __call__(self, rows: Tensor) -> Tensor:
        """See `Product`."""
        product: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self._packed)
        return product


class Int8Product:
    """oneDNN's product of bytes: one scale for each row and one for each output feature.

    Sums are integers and each row has its own scale, so that a row's result is the same, bit
    for bit, whatever other rows there are.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, levels: int) -> None:
        """Round `weight` to bytes; rows will be rounded to -levels..levels."""
        self._scales = weight.abs().amax(dim=1).clamp_min_(_LEAST_PEAK).div_(127)
        rounded = (weight / self._scales[:, None]).round_().to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._zeros = torch.zeros_like(self._scales, dtype=torch.int64)
        self._bias = bias
        self._levels = levels
        self._middle = levels + 1  # the byte that means 0: kernels want unsigned rows

    def __call__(self, rows: Tensor) -> Tensor:
        """See `Product`."""
        peaks = rows.abs().amax(dim=1, keepdim=True).clamp_min_(_LEAST_PEAK)
        shifted = (rows * (self._levels / peaks)).add_(_ROUNDER + self._middle)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            _filled(shifted.view(torch.int32).to(torch.uint8)),
            1.0,
            self._middle,
            self._weight,
            self._scales,
            self._zeros,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        product = product[: len(rows)].mul_(peaks.div_(self._levels))
        return product if self._bias is None else product.add_(self._bias)


Packer = Callable[[Tensor, Tensor | None], Product]  # weight [out, in] and bias [out], float32
