"""Models and files that cannot be served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, DeepseekV3Config, PreTrainedModel, Qwen2MoeConfig

from prefixcache.config import EngineConfig
from prefixcache.engine import Engine, attention
from prefixcache.engine.model import PagedModel
from prefixcache.engine.selfcheck import check_model
from prefixcache.engine.softmax import Scores, softmax_attention
from prefixcache.errors import ModelError, UnsupportedModelError
from prefixcache.kv import KVStore
from tests.support.architectures import tiny_model
from tests.support.models import (
    write_tiny_model,
)

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "initializer_range": 0.2,
}


def serve(model: PreTrainedModel) -> None:
    paged = PagedModel(model)
    check_model(paged, KVStore(paged.layout(block_size_tokens=16), 4, paged.device))


def test_window_that_only_the_mask_knows_is_refused() -> None:
    """A model whose window does not reach the attention function is not served without it."""
    window = {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 2}
    config = Qwen2MoeConfig(**SMALL, **window, num_experts=4, num_experts_per_tok=2)
    with pytest.raises(UnsupportedModelError, match="window"):
        serve(AutoModelForCausalLM.from_config(config, dtype=torch.float32))


def test_compressed_caches_are_refused_with_a_reason() -> None:
    """A model that stores something else than its attention reads is refused by name."""
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "v_head_dim": 8}
    heads = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "n_group": 1, "topk_group": 1}
    config = DeepseekV3Config(**SMALL, **latent, **heads, n_routed_experts=4, num_experts_per_tok=2)
    with pytest.raises(UnsupportedModelError, match="Deepseek"):
        serve(AutoModelForCausalLM.from_config(config, dtype=torch.float32))


@pytest.mark.parametrize(
    ("dtype", "factor"), [(torch.float32, 0.95), (torch.float16, 0.8), (torch.bfloat16, 0.5)]
)
def test_wrong_scale_is_refused_in_every_dtype(
    dtype: torch.dtype, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check at load tells a wrong attention from rounding, in 16 bits too."""
    serve(tiny_model("llama").to(dtype))

    def weaker(
        query: Tensor, key: Tensor, value: Tensor, scores: Scores, *rest: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        scores = replace(scores, scale=scores.scale * factor)
        return softmax_attention(query, key, value, scores, *rest, **options)

    monkeypatch.setattr(attention, "softmax_attention", weaker)
    with pytest.raises(UnsupportedModelError, match="differ"):
        serve(tiny_model("llama").to(dtype))


def cut_weights(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def drop_weights(file: Path) -> None:
    weights = load_file(file)
    del weights[next(name for name in weights if "layers.1.mlp.up" in name)]
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize("spoil", [cut_weights, drop_weights])
def test_damaged_weights_stop_the_load(spoil: Any, tmp_path: Path) -> None:
    """A file that ends early or lacks a tensor is refused, never filled up with noise."""
    write_tiny_model(tmp_path)
    spoil(tmp_path / "model.safetensors")
    settings = EngineConfig(model=str(tmp_path), kv_memory_bytes=1 << 20)
    with pytest.raises(ModelError):
        Engine.load(settings, env={}, report=lambda _: None)
