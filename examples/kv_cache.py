"""What a KV cache saves, on a small scale: 1,000 tokens of one greedy generation, three ways.

    python examples/kv_cache.py

A tiny random-weight model, so that it runs in a minute anywhere; the counts are those of any
model. The first way is transformers without a cache: each new token reads everything again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from prefixcache import EngineConfig, SamplingParams
from prefixcache.engine import LocalModel

N_TOKENS = 1000  # fed to the model, one prompt token included
N_SHARED = 896  # of them known from an earlier request, in the third way: whole blocks of 16
CONFIG = EngineConfig(kv_memory_bytes=64 * 1024**2)


def tiny_model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,
        eos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def measured(model: PreTrainedModel, run: Callable[[], list[int]]) -> tuple[list[int], int, float]:
    """Run, and count the positions whose key and value the first layer computed."""
    computed = 0

    def count(_module: torch.nn.Module, _inputs: object, keys: torch.Tensor) -> None:
        nonlocal computed
        computed += keys.shape[0] * keys.shape[1]

    handle = model.model.layers[0].self_attn.k_proj.register_forward_hook(count)
    begin = time.perf_counter()
    tokens = run()
    seconds = time.perf_counter() - begin
    handle.remove()
    return tokens, computed, seconds


def without_cache(model: PreTrainedModel) -> list[int]:
    start = torch.ones(1, 1, dtype=torch.int64)
    output = model.generate(start, use_cache=False, do_sample=False, max_new_tokens=N_TOKENS)
    tokens: list[int] = output[0].tolist()
    return tokens


def generated(local: LocalModel, prompt: list[int]) -> list[int]:
    n_new = N_TOKENS - len(prompt) + 1
    answer = local.generate([prompt], SamplingParams(max_tokens=n_new, ignore_eos=True))[0]
    return [*prompt, *answer.token_ids]


def main() -> None:
    plain = tiny_model()
    tokens, n_plain, plain_seconds = measured(plain, lambda: without_cache(plain))

    model = tiny_model()
    local = LocalModel.from_model(model, CONFIG)
    cached, n_cached, cached_seconds = measured(model, lambda: generated(local, [1]))

    model = tiny_model()
    local = LocalModel.from_model(model, CONFIG)
    local.generate([tokens[:N_SHARED]], SamplingParams(max_tokens=1))  # an earlier request
    shared, n_shared, shared_seconds = measured(
        model, lambda: generated(local, tokens[: N_SHARED + 1])
    )

    print(f"{'':26}{'keys/values computed':>22}{'seconds':>10}")
    print(f"{'no cache':26}{n_plain:>22,}{plain_seconds:>10.2f}")
    print(f"{'with a cache':26}{n_cached:>22,}{cached_seconds:>10.2f}")
    print(f"{f'with {N_SHARED} tokens cached':26}{n_shared:>22,}{shared_seconds:>10.2f}")
    print(f"the same tokens each time: {tokens == cached == shared}")


if __name__ == "__main__":
    main()
