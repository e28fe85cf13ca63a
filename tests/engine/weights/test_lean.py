"""Lean layers against the layers that they replace, for each family."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PhimoeConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from prefixcache.config import EngineConfig, WeightsName
from prefixcache.engine import Engine
from prefixcache.engine.loading import LoadedModel, prepare_model
from prefixcache.engine.weights import pack
from prefixcache.engine.weights.choice import is_usable
from prefixcache.engine.weights.experts import PackedExperts
from prefixcache.engine.weights.products import PlainProduct, Product
from prefixcache.errors import ConfigError, UnsupportedModelError
from tests.support.architectures import tiny_model
from tests.support.models import Bench, prompt_ids, write_tiny_model

SMALL: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
LEAN = {
    "llama": LlamaConfig(**SMALL),
    "llama-bias": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True),
    "llama-untied": LlamaConfig(**SMALL, tie_word_embeddings=False),
    "llama3-rope": LlamaConfig(
        **SMALL,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "mistral-window": MistralConfig(**SMALL, sliding_window=8),
    "qwen2": Qwen2Config(**SMALL),
    "qwen3": Qwen3Config(**SMALL, head_dim=24),
    "gemma": GemmaConfig(**SMALL, head_dim=16),
    "gemma2": Gemma2Config(
        **SMALL,
        head_dim=16,
        sliding_window=8,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=3.0,
    ),
    "gemma3": Gemma3TextConfig(**SMALL, head_dim=16, sliding_window=8),
    "phi3": Phi3Config(**SMALL),
}
OTHERS = {
    "gpt2": GPT2Config(
        vocab_size=320, n_embd=64, n_layer=3, n_head=4, n_positions=512, initializer_range=0.2
    ),
    "cohere": CohereConfig(**SMALL),
}
EXPERTS = {
    "qwen3-moe": Qwen3MoeConfig(
        **SMALL, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64
    ),
    "mixtral": MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2),
    "gpt-oss": GptOssConfig(**SMALL, head_dim=16, num_local_experts=4, num_experts_per_tok=2),
}
WEIGHTS: tuple[WeightsName, ...] = ("float32", "16bit", "int8")
# Median share of the logits' length that packing may change in these small random models.
LOGITS = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 5e-2, "int8": 2e-1}


def make(config: Any) -> PreTrainedModel:
    torch.manual_seed(1234)
    model = AutoModelForCausalLM.from_config(
        copy.deepcopy(config), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):  # not the ones and zeros of the start
            parameter.data += torch.randn_like(parameter) * 0.2
    return model


def serve(model: PreTrainedModel, weights: WeightsName) -> tuple[LoadedModel, str]:
    said: list[str] = []
    config = EngineConfig(kv_memory_bytes=1 << 20, block_size_tokens=4, weights=weights)
    return prepare_model(model, config, name="tiny", report=said.append), said[-1]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("family", LEAN)
def test_lean_layers_take_the_place_of_common_ones(family: str, weights: WeightsName) -> None:
    """Every layer of the common families is lean, and the model says what it said before."""
    model = make(LEAN[family])
    ids = torch.randint(320, (1, 24), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        expected = copy.deepcopy(model)(ids).logits[0]
    loaded, said = serve(model, weights)
    assert "3 of 3 layers lean" in said
    assert f"weights as {loaded.info.weights}" in said
    found = loaded.model.plain_logits(ids[0].tolist())
    share = ((found - expected).norm(dim=1) / expected.norm(dim=1)).median()
    assert share <= LOGITS[loaded.info.weights]


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("family", OTHERS)
def test_other_layers_keep_their_own_code(family: str, weights: WeightsName) -> None:
    """Only their linear layers are packed; the load says so."""
    model = make(OTHERS[family])
    ids = list(range(5, 29))
    with torch.no_grad():
        expected = copy.deepcopy(model)(torch.tensor([ids])).logits[0]
    loaded, said = serve(model, weights)
    assert "0 of 3 layers lean" in said
    found = loaded.model.plain_logits(ids)
    share = ((found - expected).norm(dim=1) / expected.norm(dim=1)).median()
    assert share <= LOGITS[loaded.info.weights]


def test_layers_without_angles_stay_while_others_are_lean() -> None:
    """A layer that uses its parts in another way is found by comparison."""
    _, said = serve(make(SmolLM3Config(**SMALL, no_rope_layers=[1, 0, 1])), "float32")
    assert "2 of 3 layers lean" in said


def test_layer_with_changed_code_stays() -> None:
    """A multiplied residual, say, is no reason to refuse the model."""
    model = make(LEAN["llama"])
    layer = model.model.layers[1]
    inner = layer.mlp.forward
    layer.mlp.forward = lambda rows: inner(rows) * 0.5
    _, said = serve(model, "16bit")
    assert "2 of 3 layers lean" in said


def with_odd_weights() -> PreTrainedModel:
    """A model with a matrix that belongs to no linear layer and to no experts."""
    model = make(LEAN["llama"])
    model.model.layers[1].mlp.odd = torch.nn.Parameter(torch.randn(64, 64))
    return model


@pytest.mark.parametrize("weights", ["16bit", "int8"])
def test_wanted_weights_that_cannot_be_packed_are_refused(weights: WeightsName) -> None:
    """The message names them and says what to use."""
    with pytest.raises(ConfigError, match=r"LlamaMLP\.odd; use float32 or auto"):
        serve(with_odd_weights(), weights)


def test_weights_that_cannot_be_packed_stay_with_auto() -> None:
    """The rest is packed, and the load says what was not."""
    _, said = serve(with_odd_weights(), "auto")
    assert "stay as they are, such as LlamaMLP.odd" in said


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("family", EXPERTS)
def test_experts_are_packed_one_by_one(family: str, weights: WeightsName) -> None:
    """The model says what it said before, and no stack of unpacked experts is left."""
    model = make(EXPERTS[family])
    ids = list(range(5, 29))
    with torch.no_grad():
        expected = copy.deepcopy(model)(torch.tensor([ids])).logits[0]
    loaded, said = serve(model, weights)
    assert "stay as they are" not in said
    assert not [each for each in loaded.model.model.parameters() if each.dim() == 3]
    found = loaded.model.plain_logits(ids)
    share = ((found - expected).norm(dim=1) / expected.norm(dim=1)).median()
    assert share <= LOGITS[loaded.info.weights]


def test_an_expert_s_rows_do_not_depend_on_other_rows() -> None:
    """A row's experts give the same beside other rows as alone."""
    model = make(EXPERTS["mixtral"])
    original = copy.deepcopy(model.model.layers[0].mlp.experts)
    packed = PackedExperts(model.model.layers[0].mlp.experts, PlainProduct)
    rows, weights = torch.randn(9, 64), torch.rand(9, 2)
    experts = torch.stack([torch.randperm(4)[:2] for _ in range(9)])
    found = packed(rows, experts, weights)
    torch.testing.assert_close(found, original(rows, experts, weights))
    alone = packed(rows[3:4], experts[3:4], weights[3:4])
    torch.testing.assert_close(found[3:4], alone)


@pytest.mark.skipif(not is_usable("float16"), reason="no kernel on this machine")
def test_packing_lets_the_unpacked_weights_go() -> None:
    """No large float32 tensor is left in a packed model."""
    loaded, _ = serve(make(LEAN["llama-untied"]), "16bit")
    tensors = [*loaded.model.model.parameters(), *loaded.model.model.buffers()]
    wide = [each for each in tensors if each.dim() > 1 and each.dtype == torch.float32]
    assert not wide


def test_float32_does_not_hold_a_shared_weight_twice() -> None:
    """An output layer that shares the embedding's weight keeps sharing it."""
    model = serve(make(LlamaConfig(**SMALL, tie_word_embeddings=True)), "float32")[0].model.model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_model_that_cannot_be_served_is_refused_before_packing() -> None:
    """Packing does not hide what is missing."""
    config = PhimoeConfig(**SMALL, num_local_experts=2, sliding_window=8)
    with pytest.raises(UnsupportedModelError, match="window of 8"):
        serve(make(config), "16bit")


def test_layer_that_packing_breaks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that is grossly wrong stops the load and says what to do."""

    def wrong(weight: Tensor, _: Tensor | None) -> Product:
        return PlainProduct(weight.flip(0), None)

    monkeypatch.setattr(pack, "packer", lambda _: wrong)
    with pytest.raises(UnsupportedModelError, match=r"layer 0 with weights as .*float32"):
        serve(make(LEAN["llama"]), "16bit")


@pytest.mark.parametrize("weights", WEIGHTS)
def test_cached_and_uncached_answers_agree(weights: WeightsName) -> None:
    """Whatever the weights, a prompt whose prefix is cached continues as it did uncached."""
    bench = Bench("llama", weights=weights)
    prompt = prompt_ids(41)
    cold, warm = bench.run(prompt, 6), bench.run(prompt, 6)
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 40)
    assert warm.token_ids == cold.token_ids


def test_model_in_memory_keeps_its_weights_unless_asked() -> None:
    """from_model replaces nothing by itself; the info says what is served."""
    small, model = EngineConfig(kv_memory_bytes=1 << 20), tiny_model("llama")
    modules = list(model.modules())
    assert Engine.from_model(model, small).info.weights == "float32"
    assert list(model.modules()) == modules
    small = EngineConfig(kv_memory_bytes=1 << 20, weights="int8")
    info = Engine.from_model(tiny_model("llama"), small).info
    assert (info.weights, info.dtype) == ("int8", "float32")
    assert "int8" in info.kv_format


def test_contradicting_settings_are_a_setting_s_fault(tmp_path: Path) -> None:
    """They are bad input, not a model that cannot be loaded."""
    write_tiny_model(tmp_path)
    config = EngineConfig(model=str(tmp_path), weights="int8", dtype="bfloat16")
    with pytest.raises(ConfigError, match="leave dtype out"):
        Engine.load(config, env={})


def test_packed_model_still_runs_by_itself() -> None:
    """Without a step the original layers run, so that transformers' own calls go on working."""
    model = make(LEAN["qwen3"])
    ids = torch.tensor([prompt_ids(12)])
    with torch.no_grad():
        expected = copy.deepcopy(model)(ids).logits
        loaded, _ = serve(model, "float32")
        loaded.model.use_attention("eager")
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-3, rtol=1e-4)
