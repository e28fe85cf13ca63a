"""Keys and queries turned alike, so that no number of a key stands out.

A few of a key's numbers are often many times as large as the rest, and would take all steps of
their group. A Hadamard matrix spreads each number over all. Turning both sides leaves their
products as they were (arXiv:2404.00456): keys stay turned in the store, and queries are turned as
they come.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LEAST_ROWS = 8  # of a product: fewer are another kernel's, which rounds in another order


class Turning:
    """The turn of rows of `dim` numbers: a Hadamard matrix on each of equal parts of a row.

    A part is as long as the largest power of two that divides `dim`. Rows do not depend on each
    other.
    """

    def __init__(self, dim: int, device: torch.device) -> None:
        size = dim & -dim
        part = torch.ones(1, 1)
        while len(part) < size:
            part = torch.cat([torch.cat([part, part], 1), torch.cat([part, -part], 1)])
        matrix = torch.kron(torch.eye(dim // size), part / math.sqrt(size))
        self._matrix = matrix.to(device)

    def turned(self, rows: Tensor) -> Tensor:
        """Return rows [..., dim], turned, in their dtype."""
        flat = rows.reshape(-1, rows.shape[-1]).float()
        padding = max(_LEAST_ROWS - len(flat), 0)
        if padding:
            flat = torch.nn.functional.pad(flat, (0, 0, 0, padding))
        turned: Tensor = torch.matmul(flat, self._matrix)[: len(flat) - padding]
        return turned.view(rows.shape).to(rows.dtype)
