"""Which models are served, and how the others are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    PhimoeConfig,
    PreTrainedModel,
)

from prefixcache.engine.model import PagedModel
from prefixcache.engine.plan import Step
from prefixcache.engine.selfcheck import check_model
from prefixcache.errors import UnsupportedModelError
from prefixcache.kv import KVStore
from tests.support.models import tiny_model

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def from_config(config: Any) -> PreTrainedModel:
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def serve(model: PreTrainedModel) -> None:
    paged = PagedModel(model)
    layout = paged.layout(block_size_tokens=4)
    check_model(paged, KVStore(layout, 8, paged.device))


def test_layout_is_what_the_layers_keep() -> None:
    """Layers with a window form a group of their own, with their own heads and sizes."""
    layout = PagedModel(tiny_model("qwen2-mixed")).layout(block_size_tokens=4)
    found = [(group.layers, group.window) for group in layout.groups]
    assert found == [((0,), None), ((1, 2), 8)]
    assert {(group.kv_heads, group.key_dim, group.value_dim) for group in layout.groups} == {
        (2, 16, 16)
    }
    assert layout.bytes_per_token == 3 * 2 * (16 + 16) * 4


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Gemma2Config(**SMALL, head_dim=16), "softcap"),
        (GptOssConfig(**SMALL, head_dim=16), "s_aux"),
        (
            PhimoeConfig(
                **SMALL, num_local_experts=2, sliding_window=8, max_position_embeddings=512
            ),
            "window of 8",
        ),
        (MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2), "cache"),
        (BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=2), "cache"),
        (
            LlamaConfig(
                **SMALL,
                rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
            ),
            "rotary angles",
        ),
    ],
    ids=["soft caps", "sinks", "window in the mask", "recurrent", "own attention", "moving rope"],
)
def test_models_that_cannot_work_are_refused_with_a_reason(config: Any, reason: str) -> None:
    """What paged attention cannot do is said at load, by name."""
    with pytest.raises(UnsupportedModelError, match=reason):
        serve(from_config(config))


def test_model_that_answers_otherwise_when_paged_is_refused() -> None:
    """Logits that differ from the model's own stop the load."""

    class Shifted(PagedModel):
        def forward(self, step: Step) -> torch.Tensor:
            return super().forward(step) + (step.positions[0, -1] == 16)

    paged = Shifted(tiny_model("llama"))
    store = KVStore(paged.layout(block_size_tokens=4), 8, paged.device)
    with pytest.raises(UnsupportedModelError, match="differ"):
        check_model(paged, store)
