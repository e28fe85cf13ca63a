"""What each key of a block is kept as the difference from: a mean of the keys before it.

Neighbours are alike in most of their numbers, so a difference has fewer bits to spend. With r_i
what is read of row i's own bits, and k_i the key that it stands for,

    k_0 = r_0        k_i = m_i + r_i        m_i = the mean of k_0 .. k_(n-1), n = min(i, 4)
    m_0 = 0          m_(n+1) = m_n + r_n / (n + 1)

The mean is that of keys as they are read, so no error adds to another's. A row depends on the rows
before it in its block and on no others: whatever is written after it leaves it as it is. All is
done number by number in one order, so that its bits are the same whatever is read together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prefixcache.kv.slots import MOST_FIRST_ROWS


class References:
    """The means m_0, m_1 and so on of blocks, from what is read of their rows' own bits."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        counts = torch.arange(1, MOST_FIRST_ROWS + 1, dtype=torch.float32, device=device)
        self._shares = counts.reciprocal().to(dtype).unsqueeze(1)  # [n, 1]: 1, 1/2, 1/3, ...

    def of(self, first: Tensor) -> Tensor:
        """Return m_0 to m_n for the first n rows of blocks, [..., n, dim], as [..., n + 1, dim]."""
        *shape, n_rows, dim = first.shape
        means = first.new_empty(*shape, n_rows + 1, dim)
        means.narrow(-2, 0, 1).zero_()
        _add_up(torch.mul(first, self._shares[:n_rows], out=means.narrow(-2, 1, n_rows)))
        return means

    def add_to(self, blocks: Tensor) -> None:
        """Make keys of what is read of the own bits of whole blocks, [..., block_size, dim].

        A row may be anything, even NaN: it changes none before it.
        """
        n_rows = min(MOST_FIRST_ROWS, blocks.shape[-2] - 1)
        if not n_rows:
            return
        means = _add_up(blocks.narrow(-2, 0, n_rows) * self._shares[:n_rows])
        n_others = blocks.shape[-2] - 1 - n_rows
        blocks.narrow(-2, 1, n_rows).add_(means)
        blocks.narrow(-2, 1 + n_rows, n_others).add_(means.narrow(-2, n_rows - 1, 1))


def _add_up(rows: Tensor) -> Tensor:
    """Add to each row all that are before it, in place: one after the other, never in a tree."""
    before, *others = rows.unbind(-2)
    for row in others:
        before = row.add_(before)
    return rows
