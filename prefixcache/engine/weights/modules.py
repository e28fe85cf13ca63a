"""Modules that take the place of a model's own, with packed weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from prefixcache.engine.weights.products import Product


class PackedLinear(nn.Module):
    """A linear layer with a packed weight."""

    def __init__(self, product: Product, in_features: int, out_features: int) -> None:
        super().__init__()
        self.product = product
        self.in_features = in_features
        self.out_features = out_features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [..., out_features] for float32 [..., in_features]."""
        shape = (*inputs.shape[:-1], self.out_features)
        rows = inputs.reshape(-1, inputs.shape[-1])
        if not len(rows):
            return inputs.new_empty(shape)
        return self.product(rows).view(shape)


class LinearPart(nn.Module):
    """Some of the output features of a packed layer, as the layer that it was fused from."""

    def __init__(self, whole: PackedLinear, start: int, stop: int) -> None:
        super().__init__()
        self.whole = whole
        self.start, self.stop = start, stop

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [..., stop - start]. Cost: the whole product."""
        features: Tensor = self.whole(inputs)[..., self.start : self.stop]
        return features


class SmallEmbedding(nn.Module):
    """An embedding whose table is kept in 16 bits; what it gives is float32."""

    def __init__(self, table: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("table", table.to(dtype), persistent=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return float32 [..., width]."""
        return nn.functional.embedding(token_ids, self.get_buffer("table")).float()


def is_linear(module: nn.Module) -> bool:
    """Whether a module is one of the plain linear layers that can be packed."""
    return type(module) in (nn.Linear, Conv1D)


def weight_and_bias(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return the [out, in] weight and the bias of a linear layer; both stay its own."""
    weight, bias = module.weight, module.bias
    assert isinstance(weight, Tensor)
    assert bias is None or isinstance(bias, Tensor)
    matrix = weight.detach() if isinstance(module, nn.Linear) else weight.detach().T
    return matrix, None if bias is None else bias.detach()


def replace_module(root: nn.Module, path: str, new: nn.Module) -> None:
    """Put `new` where `path` leads to from `root`."""
    parent, _, name = path.rpartition(".")
    setattr(root.get_submodule(parent), name, new)
