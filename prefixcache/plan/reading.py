"""From a transformers configuration to the figures that a plan needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from transformers import AutoConfig, PretrainedConfig

from prefixcache.errors import ModelError
from prefixcache.plan.catalogue import known_config, known_models
from prefixcache.plan.layers import layers_of
from prefixcache.plan.shape import ModelShape

_NUMBER_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}
_USUAL_BYTES = 2


def read_config(model: str) -> tuple[str, PretrainedConfig]:
    """Return a model's name and its configuration, with the family's defaults filled in.

    Args:
        model: a folder with a config.json, such a file, or a name that is known offline.

    Raises:
        ModelError: there is no such thing, it cannot be read, or transformers does not know the
            family; code that comes with a model is not run.
    """
    path = Path(model)
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        name = path.parent.resolve().name if path.name == "config.json" else path.stem
        return name, _configuration(model, _fields_of(model, path))
    fields = known_config(model)
    if fields is None:
        raise ModelError(
            f"{model!r} is no folder with a config.json, no such file and no name known offline;"
            f" known are {', '.join(known_models())}"
        )
    return model, _configuration(model, fields)


def read_shape(model: str) -> ModelShape:
    """Return what the model keeps of its tokens. Takes and raises what `read_config` does."""
    name, config = read_config(model)
    return shape_of(name, config)


def shape_of(name: str, config: PretrainedConfig) -> ModelShape:
    """Return what a configuration says.

    Raises:
        ModelError: it is of an encoder-decoder, or says nothing of layers and heads.
    """
    if config.is_encoder_decoder:
        raise ModelError(f"{name} is an encoder-decoder; plans are for decoder-only models")
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_attention_heads", None) or 1
    layers, unknown = layers_of(text)
    if not layers:
        raise ModelError(f"the configuration of {name} does not say how many layers there are")
    hidden = _number(text, "hidden_size", 0)
    return ModelShape(
        name=name,
        family=config.model_type,
        layers=layers,
        heads=heads,
        head_dim=_head_dim(text, hidden // heads),
        hidden_size=hidden,
        intermediate_size=_number(text, "intermediate_size", 4 * hidden),
        vocab_size=_number(text, "vocab_size", 0),
        max_tokens=getattr(text, "max_position_embeddings", None),
        number_bytes=_NUMBER_BYTES.get(_dtype_name(config, text), _USUAL_BYTES),
        unknown=unknown,
    )


def _fields_of(model: str, path: Path) -> Mapping[str, object]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"the configuration of {model!r} cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise ModelError(f"the configuration of {model!r} is no JSON object")
    return fields


def _configuration(model: str, fields: Mapping[str, object]) -> PretrainedConfig:
    family = fields.get("model_type")
    if not isinstance(family, str):
        raise ModelError(f"the configuration of {model!r} names no model_type")
    others = {key: value for key, value in fields.items() if key != "model_type"}
    try:
        return AutoConfig.for_model(family, **others)
    except Exception as error:  # whatever a configuration's own checks raise
        raise ModelError(f"the configuration of {model!r} cannot be used: {error}") from error


def _number(config: PretrainedConfig, field: str, default: int) -> int:
    value = getattr(config, field, None)
    return value if isinstance(value, int) else default


def _head_dim(config: PretrainedConfig, usual: int) -> int:
    if getattr(config, "kv_lora_rank", None):
        scored = config.qk_nope_head_dim + config.qk_rope_head_dim
        return int(scored + config.v_head_dim) // 2
    return _number(config, "head_dim", usual)


def _dtype_name(config: PretrainedConfig, text: PretrainedConfig) -> str:
    dtype = getattr(text, "dtype", None) or getattr(config, "dtype", None)
    return str(dtype).removeprefix("torch.")
