"""A decoder layer in few calls: fused packed products, lean norms, paged attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prefixcache.engine.attention import attended
from prefixcache.engine.plan import Step
from prefixcache.engine.softmax import Scores
from prefixcache.engine.weights.norms import Angles, rotate
from prefixcache.engine.weights.parts import LayerParts
from prefixcache.engine.weights.products import Product


@dataclass(frozen=True, slots=True)
class LayerProducts:
    """The four products of a layer."""

    qkv: Product  # queries, keys and values, one after another
    output: Product
    gate_up: Product  # the gates, then what they let through
    down: Product


class LeanLayer(nn.Module):
    """Computes what a transformers decoder layer does for the rows of a step.

    Without a step (the model's own attention, `generate`) the original layer runs, whose
    projections read the same packed weights.
    """

    def __init__(
        self, original: nn.Module, parts: LayerParts, products: LayerProducts, angles: Angles
    ) -> None:
        super().__init__()
        self.original = original
        self.attention_type = getattr(original, "attention_type", None)  # some models ask for it
        self._parts, self._products, self._angles = parts, products, angles
        layer = parts.attention.layer_idx
        assert isinstance(layer, int)
        self._layer = layer
        self._scores = Scores(parts.scaling, parts.softcap)

    def forward(
        self,
        hidden_states: Tensor,
        *arguments: Any,
        step: Step | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **extras: Any,
    ) -> Tensor:
        """Return the layer's output, [1, t, width], as the original layer would."""
        if step is None or position_embeddings is None or arguments:
            known = {"step": step, "position_embeddings": position_embeddings}
            extras.update((name, found) for name, found in known.items() if found is not None)
            output: Tensor = self.original(hidden_states, *arguments, **extras)
            return output
        rows = hidden_states[0]
        rows = rows + self._attended(rows, step, position_embeddings)
        return rows.add_(self._fed_forward(rows)).unsqueeze(0)

    def _attended(
        self, rows: Tensor, step: Step, position_embeddings: tuple[Tensor, Tensor]
    ) -> Tensor:
        parts = self._parts
        n_rotated = parts.heads + parts.kv_heads
        heads = self._products.qkv(parts.norms.before_attention(rows))
        heads = heads.view(len(rows), n_rotated + parts.kv_heads, parts.head_dim)
        rotated = heads[:, :n_rotated]
        if parts.norms.heads is not None:
            rotated = parts.norms.heads(rotated)
        rotated = rotate(rotated, *self._angles.of(*position_embeddings)).transpose(0, 1)
        query, key = torch.split(rotated, [parts.heads, parts.kv_heads])
        value = heads[:, n_rotated:].transpose(0, 1)
        slots = step.groups[step.store.group_of(self._layer)].slots
        key, value = step.store.write(self._layer, slots, key, value)
        seen = attended(query, key, value, step, self._layer, self._scores)
        output = self._products.output(seen)
        after = parts.norms.after_attention
        return output if after is None else after(output)

    def _fed_forward(self, rows: Tensor) -> Tensor:
        parts = self._parts
        gates, ups = self._products.gate_up(parts.norms.before_mlp(rows)).chunk(2, 1)
        output = self._products.down(parts.activation(gates).mul_(ups))
        after = parts.norms.after_mlp
        return output if after is None else after(output)
