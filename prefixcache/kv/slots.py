"""Places in the store that a step writes or reads, and what layer after layer must know of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

MOST_FIRST_ROWS = 4  # of a block, that the rest of it may be told from


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of some blocks, and how many of them stand before each of some slots."""

    n_rows: int  # of each block
    slots: Tensor  # int64 [n_blocks * n_rows]: those of a block one after another
    places: Tensor  # int64 [n]: block * (n_rows + 1) + how many are before the slot
    among: Tensor | None  # int64 [n_blocks * n_rows]: which of the slots they are; None: not all


@dataclass(frozen=True, slots=True)
class Round:
    """Slots that can be written at once, because what stands before them is in the store."""

    rows: Tensor | None  # int64 [n]: which of all that are to be written; None: all of them
    slots: Slots


class Slots:
    """Any slots of one layer group, in any order.

    What is worked out about them is kept, so that it is done once a step and not once a layer.
    """

    def __init__(
        self, slots: Tensor | Sequence[int], block_size_tokens: int, device: torch.device
    ) -> None:
        self.index = torch.as_tensor(slots, dtype=torch.int64, device=device)  # int64 [n]
        self._block_size = block_size_tokens

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def first_rows(self) -> FirstRows:
        """The first rows of their blocks, of which those before each slot have been written."""
        size, device = self._block_size, self.index.device
        n_rows = min(MOST_FIRST_ROWS, size)
        blocks, places = torch.unique_consecutive(self.index // size, return_inverse=True)
        first = blocks.unsqueeze(1) * size + torch.arange(n_rows, device=device)
        n_before = self._n_before()
        most = torch.zeros_like(blocks).scatter_reduce_(0, places, n_before, "amax")
        is_needed = torch.arange(n_rows, device=device) < most.unsqueeze(1)
        return FirstRows(
            n_rows,
            first.flatten(),
            places * (n_rows + 1) + n_before,
            self._among(first.flatten(), is_needed.flatten()),
        )

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """Themselves in as few rounds as can be: each slot after the first rows before it.

        A block that is written from its start takes MOST_FIRST_ROWS rounds and one more; a slot
        whose block is not written before it is in the first round.
        """
        order = self._orders()
        n_rounds = int(order.max()) + 1 if len(order) else 1
        if n_rounds == 1:
            return (Round(None, self),)
        rows = [torch.nonzero(order == number).squeeze(1) for number in range(n_rounds)]
        return tuple(Round(each, self._some(each)) for each in rows)

    def _among(self, wanted: Tensor, is_needed: Tensor) -> Tensor | None:
        """Return where wanted slots are among these, and anything for those not needed."""
        if not len(self):
            return None
        ascending, order = self.index.sort()
        found = torch.searchsorted(ascending, wanted).clamp_(max=len(self) - 1)
        is_there = (ascending[found] == wanted) | ~is_needed
        return order[found] if bool(is_there.all()) else None

    def _n_before(self) -> Tensor:
        """Return how many of their blocks' first rows are before each slot."""
        return (self.index % self._block_size).clamp(max=MOST_FIRST_ROWS)

    def _orders(self) -> Tensor:
        """Return how many first rows before each slot are among the slots themselves."""
        blocks, places = torch.unique(self.index // self._block_size, return_inverse=True)
        n_before = self._n_before()
        is_written = torch.zeros(len(blocks), MOST_FIRST_ROWS + 2, dtype=torch.int64)
        is_written = is_written.to(self.index.device)
        is_written[places, n_before + 1] = 1
        return is_written.cumsum(1)[places, n_before]

    def _some(self, rows: Tensor) -> Slots:
        return Slots(self.index[rows], self._block_size, self.index.device)
