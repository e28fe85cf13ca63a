"""The real default model, with the cache in every state, answers as transformers does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from prefixcache.config import EngineConfig, SpeculationName
from prefixcache.engine import Engine, LocalModel
from prefixcache.engine.loading import prepare_model
from prefixcache.text import PromptEncoder
from prefixcache.types import SamplingParams
from tests.support.models import Expected, RecordingModel, oracle

pytestmark = pytest.mark.model

LOGIT_TOLERANCE = 2e-3  # of logits up to about 30, summed over 30 layers in float32
N_NEW = 12
SYSTEM = "You are a patient teacher of geography. " + "Answer in one short sentence. " * 25
FIRST = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "What is the capital of Italy?"},
]
SECOND = [FIRST[0], {"role": "user", "content": "What is the longest river of Africa?"}]


class RealBench:
    """The default model twice: paged, and as transformers runs it."""

    def __init__(self, folder: Path, speculation: SpeculationName = "off") -> None:
        self.encoder = PromptEncoder.load(folder)
        self.reference = self._load(folder)
        config = EngineConfig(
            kv_memory_bytes=128 << 20,
            max_step_tokens=96,
            weights="float32",
            speculation=speculation,  # off: a row of logits for each token
        )
        tokenizer = self.encoder.tokenizer
        loaded = prepare_model(self._load(folder), config, name="smol", tokenizer=tokenizer)
        self.model = RecordingModel(loaded.model)
        self.local = LocalModel(Engine(replace(loaded, model=self.model), config), self.encoder)

    @staticmethod
    def _load(folder: Path) -> PreTrainedModel:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def run(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Serve prompts as one batch, hold each to the oracle, return their cached tokens."""
        sampling = SamplingParams(max_tokens=N_NEW, ignore_eos=True)
        self.model.rows.clear()
        answers = self.local.generate(prompts, sampling)
        self.local.engine.cache.check()
        for prompt, answer in zip(prompts, answers, strict=True):
            expected = oracle(self.reference, prompt, N_NEW)
            assert expected.is_same(answer.token_ids)
            if len(prompts) == 1:
                self.assert_same_logits(expected)
        return [answer.usage.cached_tokens for answer in answers]

    def assert_same_logits(self, expected: Expected) -> None:
        found = torch.stack(self.model.rows[-N_NEW:])
        torch.testing.assert_close(found, expected.logits, atol=LOGIT_TOLERANCE, rtol=1e-4)


@pytest.fixture(scope="module")
def bench(default_model: Path) -> RealBench:
    return RealBench(default_model)


def test_every_state_of_the_cache_equals_generate(bench: RealBench) -> None:
    """Cold, warm, partial, inside a block, whole, after eviction and batched: one answer."""
    first, second = bench.encoder.chat(FIRST), bench.encoder.chat(SECOND)
    shared = next(i for i, pair in enumerate(zip(first, second, strict=False)) if len({*pair}) > 1)
    assert shared % 16, "the prompts should part inside a block"
    assert bench.run([first]) == [0]
    assert bench.run([second]) == [shared]
    (whole,) = bench.run([first])
    assert len(first) - 16 <= whole < len(first)
    bench.local.engine.cache.evict(3)
    assert bench.run([first])[0] > 0
    bench.local.engine.cache.evict(10_000)
    assert bench.run([second]) == [0]
    assert bench.run([first, second, first[:50], first[:1], second[:77]])[1] > 0


def test_guessed_answers_equal_generate(default_model: Path) -> None:
    """An answer that is guessed from an earlier one is still the one that transformers gives."""
    bench = RealBench(default_model, "auto")
    prompt, n_new = bench.encoder.chat(FIRST), 40
    expected = oracle(bench.reference, prompt, n_new)
    sampling = SamplingParams(max_tokens=n_new, min_tokens=n_new)  # no end, as in the oracle
    for _ in range(3):
        (answer,) = bench.local.generate([prompt], sampling)
        assert expected.is_same(answer.token_ids)
    assert bench.local.engine.stats().accepted_tokens_total > 20
