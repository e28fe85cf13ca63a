"""Where the linear layers of a model are, by the names that its checkpoint has for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from prefixcache.engine.weights.lean import LeanLayer
from prefixcache.engine.weights.modules import (
    LinearPart,
    PackedLinear,
    is_linear,
    weight_and_bias,
)


@dataclass(frozen=True, slots=True)
class Place:
    """A linear layer: some output features of a module that computes them for all rows."""

    module: nn.Module
    start: int
    stop: int
    in_features: int

    @property
    def out_features(self) -> int:
        """How many output features the layer has."""
        return self.stop - self.start


def find_places(model: PreTrainedModel) -> dict[str, Place]:
    """Return the linear layers that can be adapted, by path in the model as it was loaded.

    Packing changes modules and fuses some of them; the paths stay. The output layer is left out:
    it does not see all rows.
    """
    head = model.get_output_embeddings()
    return {path: place for path, place in _walk(model, "") if place.module is not head}


def _walk(module: nn.Module, path: str) -> Iterator[tuple[str, Place]]:
    if isinstance(module, LeanLayer):
        yield from _walk(module.original, path)
    elif isinstance(module, LinearPart):
        yield path, Place(module.whole, module.start, module.stop, module.whole.in_features)
    elif isinstance(module, PackedLinear):
        yield path, Place(module, 0, module.out_features, module.in_features)
    elif is_linear(module):
        weight, _ = weight_and_bias(module)
        yield path, Place(module, 0, weight.shape[0], weight.shape[1])
    else:
        for name, child in module.named_children():
            yield from _walk(child, f"{path}.{name}" if path else name)
