"""A decoder layer in few calls: fused packed products, lean norms, paged attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from prefixcache.engine.attention import paged_attention
from prefixcache.engine.paged_cache import PagedCache
from prefixcache.engine.plan import Step
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
        seen = attend(
            parts,
            step,
            rotated[: parts.heads],
            rotated[parts.heads :],
            heads[:, n_rotated:].transpose(0, 1),
        )
        output = self._products.output(seen)
        after = parts.norms.after_attention
        return output if after is None else after(output)

    def _fed_forward(self, rows: Tensor) -> Tensor:
        parts = self._parts
        both = self._products.gate_up(parts.norms.before_mlp(rows))
        half = both.shape[1] // 2
        output = self._products.down(parts.activation(both[:, :half]).mul_(both[:, half:]))
        after = parts.norms.after_mlp
        return output if after is None else after(output)


def attend(parts: LayerParts, step: Step, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Write keys and values to the store and attend; the lean layers' one way to both.

    Args:
        parts: of the layer.
        step: the plan of this forward.
        query, key, value: [heads or kv_heads, t, head_dim], rotated.

    Returns:
        [t, heads * head_dim].
    """
    layer = parts.attention.layer_idx
    assert isinstance(layer, int)
    keys, values = PagedCache(step).update(key.unsqueeze(0), value.unsqueeze(0), layer)
    output, _ = paged_attention(
        parts.attention,
        query.unsqueeze(0),
        keys,
        values,
        None,
        step=step,
        scaling=parts.scaling,
        softcap=parts.softcap,
    )
    return output.reshape(output.shape[1], -1)
