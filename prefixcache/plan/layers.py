"""The layers of a transformers configuration, by what each keeps of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from transformers import PretrainedConfig

from prefixcache.plan.shape import Layer, LayerKind
from prefixcache.plan.states import state_numbers

_ATTENDS = frozenset({"full_attention", "attention", "global", "hybrid", "hybrid_attention"})
_WINDOWED = frozenset({"sliding_attention", "chunked_attention", "local"})
_KEEPS_NOTHING = frozenset({"moe", "mlp"})
_WINDOW_FIELDS = ("sliding_window", "attention_window_size", "window_size")


def layers_of(config: PretrainedConfig) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    """Return the layers of a decoder, and what could not be told about them, for people."""
    kinds = _kinds(config)
    attention, window = _attention(config), _windowed(config)
    state = state_numbers(config)
    layers = [_layer(kind, attention, window, state or 0) for kind in kinds]
    n_readers = getattr(config, "num_kv_shared_layers", None) or 0  # the last ones
    layers[len(layers) - n_readers :] = [Layer(kind=LayerKind.NONE)] * n_readers
    is_unknown = state is None and any(each.kind is LayerKind.STATE for each in layers)
    unknown = ("the size of its recurrent states; it is counted as nothing",) if is_unknown else ()
    return tuple(layers), unknown


def _layer(kind: str, attention: Layer, window: Layer, state: int) -> Layer:
    if kind in _KEEPS_NOTHING:
        return Layer(kind=LayerKind.NONE)
    if kind in _WINDOWED:
        return window
    if kind == "hybrid":  # both in one layer
        return replace(attention, state_numbers=state)
    if kind in _ATTENDS:
        return attention
    return Layer(kind=LayerKind.STATE, state_numbers=state)


def _kinds(config: PretrainedConfig) -> list[str]:
    """Return the kind of each layer, in transformers' words where it has them."""
    n_layers = getattr(config, "num_hidden_layers", 0) or 0
    if config.model_type in _FAMILIES:
        return _FAMILIES[config.model_type](config, n_layers)
    for field in ("layer_types", "layers_block_type", "attention_layers"):
        named = getattr(config, field, None)
        if isinstance(named, list | tuple) and len(named) == n_layers:
            return [str(kind) for kind in named]
    if not getattr(config, "num_attention_heads", None):
        return ["recurrent"] * n_layers
    is_windowed = _window_tokens(config) is not None
    return ["sliding_attention" if is_windowed else "full_attention"] * n_layers


def _cycled_blocks(config: PretrainedConfig, n_layers: int) -> list[str]:
    blocks = config.block_types
    kinds = [blocks[index % len(blocks)] for index in range(n_layers)]
    return ["sliding_attention" if kind == "attention" else kind for kind in kinds]


def _all(kind: str) -> Callable[[PretrainedConfig, int], list[str]]:
    return lambda _, n_layers: [kind] * n_layers


_FAMILIES: Mapping[str, Callable[[PretrainedConfig, int], list[str]]] = MappingProxyType(
    {
        "recurrent_gemma": _cycled_blocks,
        "falcon_h1": _all("hybrid"),
        "rwkv": _all("recurrent"),
    }
)


def _attention(config: PretrainedConfig) -> Layer:
    """Return what a layer keeps that sees all positions."""
    heads = getattr(config, "num_attention_heads", None) or 0
    if not heads:
        return Layer(kind=LayerKind.NONE)
    latent = getattr(config, "kv_lora_rank", None)
    if latent:
        rotated = config.qk_rope_head_dim
        of_a_head = config.qk_nope_head_dim + rotated + config.v_head_dim
        return Layer(
            kind=LayerKind.LATENT,
            kv_heads=1,
            numbers_per_token=latent + rotated,
            unshared_numbers_per_token=heads * of_a_head,
        )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = _kv_heads(config, heads)
    return Layer(
        kind=LayerKind.FULL,
        kv_heads=kv_heads,
        numbers_per_token=2 * kv_heads * head_dim,
        unshared_numbers_per_token=2 * heads * head_dim,
    )


def _windowed(config: PretrainedConfig) -> Layer:
    """Return what a layer keeps that sees a window only."""
    full = _attention(config)
    window = _window_tokens(config) or getattr(config, "attention_chunk_size", None)
    return replace(full, kind=LayerKind.WINDOW, window_tokens=window)


def _window_tokens(config: PretrainedConfig) -> int | None:
    for field in _WINDOW_FIELDS:
        window = getattr(config, field, None)
        if isinstance(window, int) and window > 0:
            return window
    return None


def _kv_heads(config: PretrainedConfig, heads: int) -> int:
    """Return how many heads have keys and values of their own, as the families say it."""
    if config.model_type == "falcon":
        if config.new_decoder_architecture:
            return int(config.num_kv_heads)
        return 1 if config.multi_query else heads
    inner = getattr(config, "attn_config", None)
    if inner is not None and getattr(inner, "kv_n_heads", None):
        return int(inner.kv_n_heads)
    return getattr(config, "num_key_value_heads", None) or heads
