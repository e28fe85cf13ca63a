"""The parts of a decoder layer of the common shape, found by their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from prefixcache.engine.weights.modules import is_linear, weight_and_bias
from prefixcache.engine.weights.norms import LeanNorm, lean_norm
from prefixcache.kv import LayerGroup

_ATTENTION = {"q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj", "q_norm", "k_norm"}
_SINKS = "sinks"  # of attention; the lean call has none
_MLP = {"gate_proj", "up_proj", "gate_up_proj", "down_proj"}
_NORMS = {
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """Norms before and, in some families, after attention and the feed-forward part."""

    before_attention: LeanNorm
    after_attention: LeanNorm | None
    before_mlp: LeanNorm
    after_mlp: LeanNorm | None
    heads: LeanNorm | None  # of queries and keys, [heads + kv_heads, head_dim]


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What a lean layer is made of. The names of projections are paths within the layer."""

    attention: nn.Module
    heads: int
    kv_heads: int
    head_dim: int
    scaling: float
    softcap: float | None
    norms: LayerNorms
    qkv: tuple[str, ...]  # queries, keys, values; or the one that holds all three
    output: str
    gate_up: tuple[str, ...]
    down: str
    activation: Callable[[Tensor], Tensor]


def find_parts(layer: nn.Module, group: LayerGroup) -> LayerParts | None:
    """Return the parts of a decoder layer, or None where it is not of the common shape.

    This looks at names and sizes alone; whether the parts are used in the common way shows
    when the lean layer is compared with the original (`watch.py`).
    """
    children = dict(layer.named_children())
    attention, mlp = children.get("self_attn"), children.get("mlp")
    if attention is None or mlp is None or not _only(layer, _NORMS | {"self_attn", "mlp"}):
        return None
    qkv = _present(attention, ("qkv_proj",), ("q_proj", "k_proj", "v_proj"))
    gate_up = _present(mlp, ("gate_up_proj",), ("gate_proj", "up_proj"))
    activation = getattr(mlp, "act_fn", None) or getattr(mlp, "activation_fn", None)
    is_fed_forward = gate_up and _present(mlp, ("down_proj",)) and _only(mlp, _MLP)
    if activation is None or not (is_fed_forward and qkv and _is_common(attention, group)):
        return None
    scaling, heads = attention.scaling, _n_heads(attention, group)
    assert isinstance(scaling, float)
    norms = _norms(children, attention, heads, group.kv_heads)
    if norms is None:
        return None
    return LayerParts(
        attention=attention,
        heads=heads,
        kv_heads=group.kv_heads,
        head_dim=group.key_dim,
        scaling=scaling,
        softcap=getattr(attention, "attn_logit_softcapping", None),
        norms=norms,
        qkv=tuple(f"self_attn.{name}" for name in qkv),
        output="self_attn.o_proj",
        gate_up=tuple(f"mlp.{name}" for name in gate_up),
        down="mlp.down_proj",
        activation=activation,
    )


def _is_common(attention: nn.Module, group: LayerGroup) -> bool:
    """Whether attention has nothing beside projections, norms of heads and a scaling."""
    return (
        _only(attention, _ATTENTION)
        and bool(_present(attention, ("o_proj",)))
        and group.key_dim == group.value_dim
        and isinstance(getattr(attention, "layer_idx", None), int)
        and isinstance(getattr(attention, "scaling", None), float)
        and getattr(attention, _SINKS, None) is None
    )


def _only(module: nn.Module, names: set[str]) -> bool:
    """Whether all that computes in a module is known by name, and it has no weights itself."""
    harmless = {"act_fn", "activation_fn"}
    return not list(module.parameters(recurse=False)) and all(
        name in names | harmless or isinstance(child, nn.Dropout | nn.Identity)
        for name, child in module.named_children()
    )


def _present(module: nn.Module, *choices: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first of `choices` whose names are all plain linear layers of a module."""
    for names in choices:
        found = [getattr(module, name, None) for name in names]
        if all(isinstance(each, nn.Module) and is_linear(each) for each in found):
            return names
    return ()


def _n_heads(attention: nn.Module, group: LayerGroup) -> int:
    weight, _ = weight_and_bias(attention.get_submodule("o_proj"))
    return weight.shape[1] // group.value_dim


def _norms(
    children: dict[str, nn.Module], attention: nn.Module, heads: int, kv_heads: int
) -> LayerNorms | None:
    """Return the layer's norms, or None where one is missing or of another kind."""
    lean = {name: lean_norm(children[name]) for name in _NORMS if name in children}
    is_sandwich = "pre_feedforward_layernorm" in lean
    before = lean.get("input_layernorm")
    middle = lean.get("post_attention_layernorm")
    second = lean.get("pre_feedforward_layernorm") if is_sandwich else middle
    on_heads = _head_norm(attention, heads, kv_heads)
    has_head_norms = hasattr(attention, "q_norm") or hasattr(attention, "k_norm")
    if None in lean.values() or before is None or second is None:
        return None
    if has_head_norms and on_heads is None:
        return None
    after = middle if is_sandwich else None
    return LayerNorms(before, after, second, lean.get("post_feedforward_layernorm"), on_heads)


def _head_norm(attention: nn.Module, heads: int, kv_heads: int) -> LeanNorm | None:
    of_queries, of_keys = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    if of_queries is None or of_keys is None:
        return None
    queries, keys = lean_norm(of_queries), lean_norm(of_keys)
    if queries is None or keys is None:
        return None
    return queries.joined(keys, heads, kv_heads)
