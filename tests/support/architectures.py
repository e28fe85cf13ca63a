"""A tiny random-weight model of each served family, made from transformers' configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from transformers import AutoModelForCausalLM, PreTrainedModel

VOCAB_SIZE = 320
_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
_SHARED: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # wide enough for logits that differ clearly
    **_ENDS,
}
_MANY_HEADS = {name: _SHARED[name] for name in _SHARED if name != "num_key_value_heads"}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
_WINDOWS = {"sliding_window": 8, "layer_types": _MIXED}
_QWEN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}

# The first ones were there before norms and biases were made random: tests know what they say.
_PLAIN: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaConfig(**_SHARED),
    "qwen2": lambda: hf.Qwen2Config(**_SHARED),
    "qwen3": lambda: hf.Qwen3Config(**_SHARED, head_dim=24),
    "mistral": lambda: hf.MistralConfig(**_SHARED, sliding_window=None),
    "mistral-window": lambda: hf.MistralConfig(**_SHARED, sliding_window=8),
    "qwen2-mixed": lambda: hf.Qwen2Config(
        **_SHARED, use_sliding_window=True, sliding_window=8, max_window_layers=1
    ),
    "gpt2": lambda: hf.GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=512,
        initializer_range=0.2,
        **_ENDS,
    ),
}
_ROUGHENED: dict[str, Callable[[], Any]] = {
    "qwen3-moe": lambda: hf.Qwen3MoeConfig(**_SHARED, **_QWEN_EXPERTS),
    "mixtral": lambda: hf.MixtralConfig(
        **_SHARED, num_local_experts=4, num_experts_per_tok=2, sliding_window=None
    ),
    "gemma": lambda: hf.GemmaConfig(**_SHARED, head_dim=16),
    "gemma2": lambda: hf.Gemma2Config(
        **_SHARED,
        **_WINDOWS,
        head_dim=16,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=20.0,
    ),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **_SHARED, **_WINDOWS, head_dim=16, query_pre_attn_scalar=16
    ),
    "phi3": lambda: hf.Phi3Config(**_SHARED, sliding_window=None),
    "gpt-neox": lambda: hf.GPTNeoXConfig(**_MANY_HEADS, rotary_pct=0.5),
    "gpt-bigcode": lambda: hf.GPTBigCodeConfig(
        vocab_size=VOCAB_SIZE,
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=512,
        initializer_range=0.2,
        **_ENDS,
    ),
    "persimmon": lambda: hf.PersimmonConfig(**_MANY_HEADS),
    "glm4-moe": lambda: hf.Glm4MoeConfig(
        **_SHARED,
        moe_intermediate_size=48,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        head_dim=16,
    ),
    "opt": lambda: hf.OPTConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        word_embed_proj_dim=64,
        ffn_dim=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=512,
        init_std=0.2,
        **_ENDS,
    ),
    "gpt-oss": lambda: hf.GptOssConfig(
        **_SHARED,
        **_WINDOWS,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "olmo": lambda: hf.OlmoConfig(**_SHARED, clip_qkv=2.0),
    "olmo2": lambda: hf.Olmo2Config(**_SHARED),
    "olmo3": lambda: hf.Olmo3Config(**_SHARED, **_WINDOWS),
    "granite": lambda: hf.GraniteConfig(
        **_SHARED,
        embedding_multiplier=2.0,
        attention_multiplier=0.2,
        residual_multiplier=0.6,
        logits_scaling=2.0,
    ),
    "cohere": lambda: hf.CohereConfig(**_SHARED),
    "cohere2": lambda: hf.Cohere2Config(**_SHARED, **_WINDOWS),
    "starcoder2": lambda: hf.Starcoder2Config(**_SHARED, sliding_window=8),
    "smollm3": lambda: hf.SmolLM3Config(**_SHARED, no_rope_layers=[1, 0, 1]),
    "phi": lambda: hf.PhiConfig(**_SHARED, partial_rotary_factor=0.5),
    "glm": lambda: hf.GlmConfig(**_SHARED, head_dim=16),
    "glm4": lambda: hf.Glm4Config(**_SHARED, head_dim=16),
    "olmoe": lambda: hf.OlmoeConfig(**_SHARED, num_experts=4, num_experts_per_tok=2),
    "qwen2-moe": lambda: hf.Qwen2MoeConfig(
        **_SHARED, **_QWEN_EXPERTS, shared_expert_intermediate_size=48
    ),
    "granite-moe": lambda: hf.GraniteMoeConfig(
        **_SHARED, num_local_experts=4, num_experts_per_tok=2
    ),
    "seed-oss": lambda: hf.SeedOssConfig(**_SHARED, head_dim=16),
    "exaone4": lambda: hf.Exaone4Config(**_SHARED, **_WINDOWS),
    "ernie4.5": lambda: hf.Ernie4_5Config(**_SHARED, head_dim=16),
    "helium": lambda: hf.HeliumConfig(**_SHARED, head_dim=16),
    "arcee": lambda: hf.ArceeConfig(**_SHARED),
}
CONFIGS = _PLAIN | _ROUGHENED
_ODD: dict[str, Callable[[], Any]] = {  # widths that are no multiple of what a vector holds
    "odd-llama": lambda: hf.LlamaConfig(
        **_SHARED | {"hidden_size": 56, "intermediate_size": 90}, tie_word_embeddings=True
    ),
    "odd-gemma3": lambda: hf.Gemma3TextConfig(
        **_SHARED | {"intermediate_size": 90, "num_hidden_layers": 4},
        head_dim=24,
        sliding_window=40,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
}

_TRAINED_TOKENS = 64
_LONG_FACTORS = {"short_factor": [1.0] * 8, "long_factor": [3.0 + i for i in range(8)]}
_ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": _TRAINED_TOKENS},
    "longrope": {"original_max_position_embeddings": _TRAINED_TOKENS, **_LONG_FACTORS},
    "llama3": {
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": _TRAINED_TOKENS,
    },
}


def llama_with_rope(rope_type: str) -> PreTrainedModel:
    """Return a tiny Llama of 256 positions, of a rope that was trained with 64 where it says so."""
    torch.manual_seed(1234)
    rope = {"rope_type": rope_type, "rope_theta": 10_000.0, **_ROPES[rope_type]}
    shared = _SHARED | {"max_position_embeddings": 256}
    config = hf.LlamaConfig(**shared, rope_parameters=rope)
    return hf.LlamaForCausalLM(config).eval()


ROPE_TYPES = tuple(_ROPES)


def tiny_model(architecture: str, *, seed: int = 1234) -> PreTrainedModel:
    """Return the same small model at every call, in float32."""
    torch.manual_seed(seed)
    config = (CONFIGS | _ODD)[architecture]()
    model = AutoModelForCausalLM.from_config(
        config,
        dtype=torch.float32,
        attn_implementation="eager",  # others drop soft caps without a word
    ).eval()
    if architecture in _ROUGHENED:
        _roughen(model)
    return model


def _roughen(model: PreTrainedModel) -> None:
    """Move norms, biases and sinks away from the ones and zeros that they begin as."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
