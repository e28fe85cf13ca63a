"""Which models are served, and how the others are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BloomConfig,
    DeepseekV3Config,
    FalconH1Config,
    JambaConfig,
    MambaConfig,
    MistralConfig,
    PhimoeConfig,
    PreTrainedModel,
    RwkvConfig,
    StableLmConfig,
    T5Config,
)

from prefixcache.engine import parts, readers
from prefixcache.engine.model import PagedModel
from prefixcache.engine.plan import Step
from prefixcache.engine.selfcheck import check_model
from prefixcache.errors import UnsupportedModelError
from prefixcache.kv import KVStore, LayerGroup
from tests.support.architectures import tiny_model

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
        (
            PhimoeConfig(
                **SMALL, num_local_experts=2, sliding_window=8, max_position_embeddings=512
            ),
            "window of 8",
        ),
        (MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2), "recurrent|no key/value"),
        (RwkvConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2), "cache"),
        (JambaConfig(**SMALL), "recurrent state"),
        (
            FalconH1Config(**SMALL, mamba_d_ssm=64, mamba_d_head=16, mamba_n_heads=4),
            "recurrent state",
        ),
        (StableLmConfig(**SMALL), "keyword arguments"),
        (BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=2), "code of its own"),
        (
            DeepseekV3Config(
                **SMALL | {"num_key_value_heads": 2},
                q_lora_rank=16,
                kv_lora_rank=16,
                v_head_dim=8,
                qk_rope_head_dim=8,
                qk_nope_head_dim=8,
                n_group=1,
                topk_group=1,
                n_routed_experts=4,
                num_experts_per_tok=2,
                moe_intermediate_size=16,
            ),
            "other keys and values",
        ),
    ],
    ids=[
        "window in the mask",
        "mamba",
        "rwkv",
        "jamba",
        "falcon-h1",
        "arguments dropped",
        "own attention",
        "latent attention",
    ],
)
def test_models_that_cannot_work_are_refused_with_a_reason(config: Any, reason: str) -> None:
    """What paged attention cannot do is said at load, in one sentence, with what works."""
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        serve(from_config(config))
    assert_one_sentence(caught.value)


def test_encoder_decoders_are_refused_with_a_reason() -> None:
    """A model that needs an encoder's text first is told apart."""
    config = T5Config(vocab_size=64, d_model=32, d_kv=16, d_ff=32, num_layers=2, num_heads=2)
    with pytest.raises(UnsupportedModelError, match="encoder") as caught:
        serve(AutoModelForSeq2SeqLM.from_config(config))
    assert_one_sentence(caught.value)


def assert_one_sentence(error: UnsupportedModelError) -> None:
    text = str(error)
    assert "\n" not in text
    assert "; these families can be: Llama, Mistral, " in text


def test_model_that_answers_otherwise_when_paged_is_refused() -> None:
    """Logits that differ from the model's own stop the load."""

    class Shifted(PagedModel):
        def forward(self, step: Step) -> torch.Tensor:
            return super().forward(step) + (step.positions[0, -1] == 16)

    paged = Shifted(tiny_model("llama"))
    store = KVStore(paged.layout(block_size_tokens=4), 8, paged.device)
    with pytest.raises(UnsupportedModelError, match="differ"):
        check_model(paged, store)


@pytest.mark.parametrize("window", [7, 8, 40, 4096])
def test_check_goes_beyond_windows_of_any_width(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window that attention gets wrong by one position is found, however wide it is."""
    config = MistralConfig(**SMALL, sliding_window=window, initializer_range=0.2)
    serve(from_config(config))
    reader = readers._reader

    def off_by_one(runs: tuple[readers.Run, ...], window: int | None, *rest: int) -> readers.Reader:
        return reader(runs, None if window is None else window + 1, *rest)

    def mask(rows: Tensor, keys: Tensor, group: LayerGroup) -> parts.Mask | None:
        wide = None if group.window is None else group.window + 1
        return make_mask(rows, keys, replace(group, window=wide))

    make_mask = parts._mask
    monkeypatch.setattr(readers, "_reader", off_by_one)
    monkeypatch.setattr(parts, "_mask", mask)
    with pytest.raises(UnsupportedModelError, match="differ"):
        serve(from_config(config))


def test_windows_are_themselves_again_after_the_check() -> None:
    """The check narrows windows for a moment; the model, its masks and the store keep theirs."""
    paged = PagedModel(from_config(MistralConfig(**SMALL, sliding_window=40)))
    store = KVStore(paged.layout(block_size_tokens=4), 8, paged.device)
    check_model(paged, store)
    assert paged.model.config.sliding_window == 40
    assert paged.layout(block_size_tokens=4) == store.layout
    assert {group.window for group in store.layout.groups} == {40}
