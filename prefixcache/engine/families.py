"""The families of models that are served, and how a model of another kind is refused.

Any decoder of transformers that writes its keys and values through a cache object and attends
through the attention interface is tried at load, in the list or not. The list is what tests
hold against transformers' own `generate`.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True)
class Family:
    """Models with one kind of decoder layer."""

    name: str
    model_types: tuple[str, ...]  # of transformers' configurations
    features: str = ""  # what its attention and its layers do beside the common


FAMILIES = (
    Family("Llama", ("llama",), "also SmolLM2, Yi, Vicuna and others of its shape"),
    Family("Mistral", ("mistral",), "sliding window"),
    Family("Mixtral", ("mixtral",), "experts"),
    Family("Qwen 2 and 2.5", ("qwen2",), "window and global layers"),
    Family("Qwen 3", ("qwen3",), "norms of heads"),
    Family("Qwen MoE", ("qwen2_moe", "qwen3_moe"), "experts; no sliding window"),
    Family("Gemma", ("gemma",)),
    Family("Gemma 2", ("gemma2",), "window and global layers, soft caps"),
    Family("Gemma 3 (text)", ("gemma3_text",), "window and global layers with ropes of their own"),
    Family("GPT-OSS", ("gpt_oss",), "attention sinks, window and global layers, experts"),
    Family("Phi and Phi-3", ("phi", "phi3"), "not the long-rope variants"),
    Family("GPT-2", ("gpt2",), "learned positions"),
    Family("GPT-NeoX", ("gpt_neox",), "also Pythia; partial rope, parallel layers"),
    Family("GPT-BigCode", ("gpt_bigcode",), "learned positions, one key head"),
    Family("Persimmon", ("persimmon",), "partial rope"),
    Family("OPT", ("opt",), "learned positions"),
    Family("OLMo 1, 2 and 3", ("olmo", "olmo2", "olmo3"), "clipped values, sliding window"),
    Family("OLMoE", ("olmoe",), "experts"),
    Family("Granite", ("granite", "granitemoe"), "multipliers, experts"),
    Family("Cohere", ("cohere", "cohere2"), "parallel layers, window and global layers"),
    Family("StarCoder2", ("starcoder2",), "sliding window"),
    Family("SmolLM3", ("smollm3",), "layers without rope"),
    Family("GLM", ("glm", "glm4", "glm4_moe"), "partial rope, experts"),
    Family("EXAONE 4", ("exaone4",), "window and global layers"),
    Family("Seed-OSS", ("seed_oss",)),
    Family("ERNIE 4.5", ("ernie4_5",)),
    Family("Helium", ("helium",)),
    Family("Arcee", ("arcee",)),
)


def unsupported(architecture: str, reason: str) -> UnsupportedModelError:
    """Return the refusal of a model, in one line, with what is served instead."""
    served = tuple(each.name for each in FAMILIES)
    return UnsupportedModelError(architecture, " ".join(reason.split()), served)
