"""Experts of a mixture with a packed product each, in place of transformers' stacked tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from prefixcache.engine.steady import row_by_row
from prefixcache.engine.weights.products import Packer, Product

_STACKS = {"gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias"}


class PackedExperts(nn.Module):
    """Computes what a transformers experts module does, expert by expert.

    Each expert has two packed products. A row goes to its experts alone, and what they give is
    summed in the row's own order, whatever other rows there are.
    """

    def __init__(self, original: nn.Module, pack: Packer, *, row_wise: bool = False) -> None:
        """Pack `original`, for which `has_common_experts` holds; its stacked weights are let go.

        With `row_wise` what is between the products does not depend on other rows either.
        """
        super().__init__()
        self._gate: Callable[[Tensor], Tensor] = original._apply_gate  # type: ignore[assignment]
        self._gate_up = _products(original, "gate_up_proj", pack)
        self._down = _products(original, "down_proj", pack)
        self._is_row_wise = row_wise
        for name in _STACKS & dict(original.named_parameters(recurse=False)).keys():
            setattr(original, name, None)

    def forward(self, rows: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sum of what each row's experts give.

        Args:
            rows: float32 [t, width].
            experts: int64 [t, chosen], which ones each row goes to.
            weights: [t, chosen], of what they give.

        Returns:
            [t, width]. Cost: one pair of products for each expert that somebody goes to.
        """
        n_chosen = experts.shape[1]
        order = experts.flatten().argsort(stable=True)
        counts = torch.bincount(experts.flatten(), minlength=len(self._down)).tolist()
        given = rows[order // n_chosen]
        output = rows.new_empty(len(order), rows.shape[1])
        start = 0
        for expert, count in enumerate(counts):
            if count:
                part = slice(start, start + count)
                output[order[part]] = self._down[expert](
                    self._gated(self._gate_up[expert](given[part]))
                )
                start += count
        return self._summed(output.view(len(rows), n_chosen, -1), weights.to(rows))

    def _gated(self, rows: Tensor) -> Tensor:
        return row_by_row(self._gate, rows) if self._is_row_wise else self._gate(rows)

    def _summed(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Return each row's [chosen, width] times its [chosen], summed in order if rows matter."""
        if not self._is_row_wise:
            return torch.einsum("tcw,tc->tw", outputs, weights)
        weighted = outputs * weights.unsqueeze(-1)
        total = weighted[:, 0]
        for one in weighted.unbind(1)[1:]:
            total = total + one
        return total


def has_common_experts(module: nn.Module) -> bool:
    """Whether a module is one of transformers' experts with nothing but stacked gates and downs."""
    names = set(dict(module.named_parameters(recurse=False)))
    return (
        {"gate_up_proj", "down_proj"} <= names <= _STACKS
        and callable(getattr(module, "_apply_gate", None))
        and isinstance(getattr(module, "is_transposed", None), bool)
        and not getattr(module, "has_post_expert_norm", False)
        and all(not list(child.parameters()) for child in module.children())
    )


def _products(original: nn.Module, name: str, pack: Packer) -> list[Product]:
    stack, biases = getattr(original, name), getattr(original, f"{name}_bias", None)
    return [
        pack(
            (matrix.detach().T if original.is_transposed else matrix.detach()).contiguous(),
            None if biases is None else biases[index].detach().clone(),
        )
        for index, matrix in enumerate(stack)
    ]
