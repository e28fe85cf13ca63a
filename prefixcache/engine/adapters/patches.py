"""What an adapter adds to the outputs of a model's modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from prefixcache.types import AdapterInfo


@dataclass(frozen=True, slots=True)
class Addition:
    """What is added to some of a module's output features."""

    ranks: slice  # of the patch's low-rank rows
    features: slice
    up: Tensor  # [ranks, features], the adapter's scale in it


@dataclass(frozen=True, slots=True)
class Patch:
    """What an adapter adds to one module's output.

    Layers that were fused into one module have their first matrices side by side, so that the rows
    are read once.
    """

    down: Tensor  # [in_features, all ranks]
    additions: tuple[Addition, ...]

    def add(self, inputs: Tensor, output: Tensor) -> None:
        """Add to `output`, [n, out_features], in place, what `inputs`, [n, in_features], give."""
        low = inputs @ self.down
        for each in self.additions:
            output[:, each.features].addmm_(low[:, each.ranks], each.up)


@dataclass(frozen=True, slots=True, eq=False)
class LoadedAdapter:
    """One load of an adapter, for the modules of one model. Whoever runs with it holds it."""

    info: AdapterInfo
    patches: Mapping[nn.Module, Patch]
    digest: bytes  # of its weights: the same at every load of the same
