"""What configurations say of layers, against the published sizes and transformers' own caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from prefixcache.errors import ModelError
from prefixcache.plan import (
    LayerKind,
    Load,
    ModelShape,
    format_of,
    known_models,
    kv_format,
    load_bytes,
    mistaken_bytes,
    read_config,
    read_shape,
    shape_of,
    token_bytes,
    weights_of,
)

TINY = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64}
FLOAT32 = kv_format("float32")
BLOCK = 16
# families whose caches transformers fills through a tiny forward, and what makes them tiny
CACHED: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "intermediate_size": 64},
    "mistral": {"num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 8},
    "qwen3": {"num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 16},
    "gemma2": {"num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 8},
    "gpt2": {"n_positions": 64},
    "gpt_neox": {"intermediate_size": 64},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bloom": {},
    "falcon": {"multi_query": True, "new_decoder_architecture": False},
    "phi3": {"num_key_value_heads": 2, "intermediate_size": 64, "pad_token_id": 0},
    "stablelm": {"num_key_value_heads": 2, "intermediate_size": 64},
    "gpt_bigcode": {"multi_query": True},
}


def tiny(family: str) -> ModelShape:
    return shape_of(family, AutoConfig.for_model(family, **TINY, **CACHED[family]))


@pytest.mark.parametrize("family", CACHED)
def test_a_tokens_bytes_are_those_that_transformers_keeps(family: str) -> None:
    """The numbers a token are as many as a forward leaves in transformers' own cache."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **TINY, **CACHED[family])
    ).eval()
    cache = DynamicCache()
    with torch.no_grad():
        model(torch.arange(5)[None], past_key_values=cache, use_cache=True)
    kept = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert token_bytes(tiny(family), FLOAT32) * 5 == 4 * kept


def test_llama_8b_needs_a_quarter_of_what_all_its_heads_would() -> None:
    """8,192 tokens take 1.07 GB with its 8 heads, not 4.29; 131,072 take 17.2 GB, not 68.7."""
    shape, kept = read_shape("Llama-3.1-8B"), kv_format("bfloat16")
    found = {
        n_tokens: (
            load_bytes(shape, kept, Load(context_tokens=n_tokens)),
            mistaken_bytes(shape, kept, n_tokens),
        )
        for n_tokens in (8192, 131_072)
    }
    assert found == {8192: (2**30, 2**32), 131_072: (2**34, 2**36)}


@pytest.mark.parametrize(
    ("model", "billions", "active"),
    [
        ("Llama-3.1-8B", 8.03, 7.50),
        ("Llama-3.1-405B", 405.85, 403.75),
        ("Mixtral-8x7B-v0.1", 46.70, 12.75),
        ("Qwen3-30B-A3B", 30.53, 3.04),
        ("DeepSeek-V3", 671.03, 36.63),
        ("gpt-oss-20b", 20.91, 3.61),
    ],
)
def test_known_models_have_their_published_numbers_of_weights(
    model: str, billions: float, active: float
) -> None:
    """Weights are counted on the family's own modules, experts by those that are chosen."""
    name, config = read_config(model)
    weights = weights_of(model, config, shape_of(name, config))
    assert round(weights.total / 1e9, 2) == billions
    assert round(weights.active / 1e9, 2) == active


@pytest.mark.parametrize("model", known_models())
def test_every_known_model_can_be_read(model: str) -> None:
    """The catalogue holds nothing that transformers refuses, and nothing of unknown size."""
    shape = read_shape(model)
    assert shape.layers
    assert shape.unknown == ()
    assert token_bytes(shape, format_of(shape.number_bytes)) > 0


def test_latent_attention_keeps_one_vector_for_all_heads() -> None:
    """DeepSeek's token is 512 latent and 64 rotated numbers a layer, whatever its 128 heads."""
    shape = read_shape("deepseek-ai/DeepSeek-V3")
    assert shape.counts() == {LayerKind.LATENT: 61}
    assert token_bytes(shape, kv_format("bfloat16")) == 61 * (512 + 64) * 2
    assert mistaken_bytes(shape, kv_format("bfloat16"), 1) == 61 * 128 * (128 + 64 + 128) * 2


def test_a_window_stops_growing() -> None:
    """Beyond its window a layer keeps the window and the block that it has begun to leave."""
    shape = read_shape("gpt-oss-20b")
    of_a_layer = 2 * 8 * 64 * 2
    long = load_bytes(shape, kv_format("bfloat16"), Load(context_tokens=1024))
    assert long == 12 * 1024 * of_a_layer + 12 * (128 + BLOCK) * of_a_layer
    short = load_bytes(shape, kv_format("bfloat16"), Load(context_tokens=128))
    assert short == 24 * 128 * of_a_layer


@pytest.mark.parametrize(
    ("family", "fields", "counts"),
    [
        ("qwen3_next", {}, {LayerKind.FULL: 12, LayerKind.STATE: 36}),
        ("jamba", {}, {LayerKind.FULL: 4, LayerKind.STATE: 28}),
        ("recurrent_gemma", {"num_hidden_layers": 6}, {LayerKind.WINDOW: 2, LayerKind.STATE: 4}),
        ("falcon_h1", {"num_hidden_layers": 3}, {LayerKind.FULL: 3}),
        ("llama4_text", {}, {LayerKind.FULL: 12, LayerKind.WINDOW: 36}),
        ("gemma3n_text", {}, {LayerKind.FULL: 4, LayerKind.WINDOW: 16, LayerKind.NONE: 15}),
        ("mamba", {"num_hidden_layers": 3}, {LayerKind.STATE: 3}),
        ("nemotron_h", {}, None),
        ("bamba", {"attn_layer_indices": [1], "num_hidden_layers": 4}, None),
        ("zamba2", {}, None),
        ("lfm2", {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}, None),
        ("minimax", {"head_dim": 64}, None),
        ("granitemoehybrid", {}, None),
        ("mamba2", {}, None),
        ("rwkv", {}, None),
        ("kimi_linear", {}, None),
    ],
)
def test_hybrids_have_states_beside_kv(
    family: str, fields: dict[str, Any], counts: dict[LayerKind, int] | None
) -> None:
    """Recurrent layers keep one state of known size, whatever the length."""
    shape = shape_of(family, AutoConfig.for_model(family, **fields))
    assert shape.unknown == ()
    assert any(layer.state_numbers for layer in shape.layers) or family in {
        "llama4_text",
        "gemma3n_text",
    }
    assert counts is None or shape.counts() == counts


def test_a_delta_nets_state_is_what_transformers_keeps() -> None:
    """The numbers of a recurrent state are as many as a forward leaves in transformers' cache."""
    fields = {
        **TINY,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    config = AutoConfig.for_model("qwen3_next", **fields)
    shape = shape_of("tiny", config)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        cache = model(torch.arange(5)[None], use_cache=True).past_key_values
    states = [
        sum(
            state.numel()
            for state in (*layer.recurrent_states.values(), *layer.conv_states.values())
        )
        for layer in cache.layers
        if getattr(layer, "recurrent_states", None)
    ]
    assert states
    assert [each.state_numbers for each in shape.layers if each.state_numbers] == states


def test_a_folder_and_a_file_are_read_alike(tmp_path: Path) -> None:
    """A config.json is found in its folder, and fields that it lacks have the family's defaults."""
    fields = {"model_type": "llama", **TINY, "num_key_value_heads": 2}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(fields))
    assert read_shape(str(tmp_path)) == read_shape(str(file))
    assert read_shape(str(tmp_path)).name == tmp_path.name


def test_the_weights_of_a_folder_are_the_bytes_of_its_files(tmp_path: Path) -> None:
    """Where the weights lie beside the configuration their size is not guessed."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **TINY}))
    (tmp_path / "model.safetensors").write_bytes(bytes(1234))
    name, config = read_config(str(tmp_path))
    assert weights_of(str(tmp_path), config, shape_of(name, config)).n_bytes == 1234


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "no JSON object"),
        ("{}", "names no model_type"),
        ('{"model_type": "of-tomorrow"}', "cannot be used"),
        ('{"model_type": "t5"}', "encoder-decoder"),
    ],
)
def test_a_configuration_that_says_nothing_is_refused(
    tmp_path: Path, content: str, said: str
) -> None:
    """What cannot be planned for is refused with the reason."""
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=said):
        read_shape(str(tmp_path))


def test_an_unknown_name_is_told_the_known_ones() -> None:
    """A name is no download: it is known, or the error lists what is."""
    with pytest.raises(ModelError, match=r"Llama-3\.1-8B"):
        read_shape("no-such-model")
