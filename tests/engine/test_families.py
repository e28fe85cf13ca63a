"""Every family that the table names answers as transformers' own `generate` does."""

from __future__ import annotations

import statistics

import pytest
import torch

from prefixcache.engine.families import FAMILIES
from tests.support.architectures import CONFIGS
from tests.support.models import LOGIT_TOLERANCE, Bench, oracle, prompt_ids

STEM = prompt_ids(34, seed=1)
PROMPTS = {
    "stem": STEM,
    "leaves at a block's edge": STEM[:16] + prompt_ids(9, seed=2),
    "leaves inside a block": [*STEM[:22], (STEM[22] + 1) % 320, *prompt_ids(7, seed=3)],
    "unlike": prompt_ids(19, seed=4),
    "one token": STEM[:1],
}
N_OUT = 8
# Median distance of the logits from the model's own in the same format, as a share of their length.
SHARES = {torch.float16: 2e-2, torch.bfloat16: 1e-1}


def test_the_table_names_what_is_tested() -> None:
    """No family is promised that no test serves, and none is served without a word."""
    promised = [kind for family in FAMILIES for kind in family.model_types]
    assert sorted(promised) == sorted({config().model_type for config in CONFIGS.values()})


def serve_a_mix(bench: Bench) -> None:
    """Read one prompt alone, then all together with a preemption, then again after an eviction."""
    bench.run(STEM, N_OUT)
    for name, prompt in PROMPTS.items():
        bench.submit(name, prompt, N_OUT)
    bench.step_until(lambda: len(bench.engine._scheduler.running) > 1)
    bench.engine._scheduler._preempt(bench.engine._scheduler.running[-1])
    bench.drain()
    bench.engine.cache.evict(3)
    bench.run(STEM, N_OUT)


def assert_equals_generate(bench: Bench) -> None:
    """All answers are generate's, and so are the logits of the one that came last."""
    wanted = {name: oracle(bench.reference, prompt, N_OUT) for name, prompt in PROMPTS.items()}
    for name, answer in bench.answers.items():
        expected = wanted["stem" if name.startswith("run-") else name]
        assert expected.is_same(answer.token_ids), name
    last = torch.stack(bench.model.rows[-N_OUT:])
    scale = wanted["stem"].logits.abs().max().clamp_min(1)
    error = (last - wanted["stem"].logits).abs().max()
    assert error <= LOGIT_TOLERANCE * scale
    assert [answer.cached_tokens for answer in bench.answers.values()].count(0) < len(PROMPTS)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_mixed_requests_equal_generate(architecture: str) -> None:
    """Cold, cached, batched, preempted and evicted, a request answers as generate does."""
    bench = Bench(architecture, block_size_tokens=3, max_step_tokens=13)
    serve_a_mix(bench)
    assert_equals_generate(bench)


@pytest.mark.slow
@pytest.mark.parametrize("max_step_tokens", [5, 16, 64])
@pytest.mark.parametrize("block_size_tokens", [1, 3, 16])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_block_sizes_and_chunks_change_no_answer(
    architecture: str, block_size_tokens: int, max_step_tokens: int
) -> None:
    """However blocks and chunks are cut, a request answers as generate does."""
    bench = Bench(
        architecture, block_size_tokens=block_size_tokens, max_step_tokens=max_step_tokens
    )
    serve_a_mix(bench)
    assert_equals_generate(bench)


def check_half_precision(architecture: str, dtype: torch.dtype) -> None:
    bench = Bench(architecture, dtype=dtype, block_size_tokens=3, max_step_tokens=13)
    shares = []
    for n_tokens in (5, 11, 17, 23, 34):
        answer = bench.run(STEM[:n_tokens], 1)
        with torch.inference_mode():
            wanted = bench.reference(torch.tensor([STEM[:n_tokens]])).logits[0, -1].float()
        shares.append(float((bench.model.rows[-1] - wanted).norm() / wanted.norm()))
    assert answer.cached_tokens == 21
    assert statistics.median(shares) <= SHARES[dtype]


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt-oss"])
def test_half_precision_stays_within_its_tolerance(architecture: str) -> None:
    """In bfloat16 the logits of cached prompts stay near those of the model's own forward."""
    check_half_precision(architecture, torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", SHARES)
@pytest.mark.parametrize("architecture", CONFIGS)
def test_every_family_is_near_in_half_precision(architecture: str, dtype: torch.dtype) -> None:
    """In 16 bits the logits of cached prompts stay near those of the model's own forward."""
    check_half_precision(architecture, dtype)
