"""Calls whose every element is computed alike, wherever it stands and whatever stands beside it.

A vectorised kernel of torch takes a flat tensor 32 float32 at a time, and what is left over one
at a time, by another function: an exponential there may differ in its last bit. A large tensor is
cut for several threads, which makes such ends in the middle. Neither happens to a tensor of at most
`SERIAL_ELEMENTS` elements, in a multiple of `EVEN_ELEMENTS`: `slabs_of` makes such tensors of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

EVEN_ELEMENTS = 32  # of the widest vectors, two at a time
ROUTED_ROWS = 16  # of a call: from 4 on, the kernels of vectors are not used
SERIAL_ELEMENTS = 16384  # fewer stay in one thread: torch's grain is 32768, gelu's the half


def slabs_of(rows: Tensor) -> Iterator[Tensor]:
    """Yield `rows` [n, width] in pieces that are computed evenly; the last may be padded.

    What pads is the last row again. Rows too wide for this come one by one: the ends of a
    lone row are always in the same places.
    """
    n_rows, width = rows.shape
    unit = EVEN_ELEMENTS // math.gcd(EVEN_ELEMENTS, width)
    most = SERIAL_ELEMENTS // (unit * width) * unit
    if not most:
        unit = most = 1
    missing = -n_rows % unit
    if missing:
        rows = torch.cat([rows, rows[-1:].expand(missing, width)])
    yield from torch.split(rows, most)


def row_by_row(function: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Return function(inputs) [..., any width], where it takes each row [..., width] by itself.

    A row's result has the same bits whatever other rows there are.
    """
    rows = inputs.reshape(-1, inputs.shape[-1])
    if not len(rows):
        return function(inputs)
    found = [function(slab.unsqueeze(0))[0] for slab in slabs_of(rows)]
    output = found[0] if len(found) == 1 else torch.cat(found)
    return output[: len(rows)].view(*inputs.shape[:-1], output.shape[-1])


def tile_by_tile(
    function: Callable[[Tensor], Tensor | tuple[Tensor, ...]], inputs: Tensor
) -> Tensor | tuple[Tensor, ...]:
    """Return function(inputs [t, width]), one tensor or several, each call of as many rows.

    For what multiplies matrices of its own, as the routers of experts do. What pads a tile is its
    last row again.
    """
    rows = inputs.reshape(-1, inputs.shape[-1])
    missing = -len(rows) % ROUTED_ROWS
    padded = torch.cat([rows, rows[-1:].expand(missing, -1)]) if missing else rows
    found = [function(tile) for tile in torch.split(padded, ROUTED_ROWS)]
    if isinstance(found[0], Tensor):
        return torch.cat(found)[: len(rows)]  # type: ignore[arg-type]
    return tuple(torch.cat(parts)[: len(rows)] for parts in zip(*found, strict=True))


def steady_exp(numbers: Tensor) -> Tensor:
    """Return e to the power of each of `numbers`, each the same wherever it stands."""
    flat = numbers.reshape(-1)
    padded = functional.pad(flat, (0, -len(flat) % EVEN_ELEMENTS))
    powers = [torch.exp(piece) for piece in torch.split(padded, SERIAL_ELEMENTS)]
    output = powers[0] if len(powers) == 1 else torch.cat(powers)
    return output[: len(flat)].view(numbers.shape)
