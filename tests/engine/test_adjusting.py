"""Penalties, bias, min_p and scores: held against the formulas of their documentation."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from prefixcache.engine.drawing import CANDIDATES
from prefixcache.engine.sampling import Sampler, choose_tokens
from prefixcache.types import SamplingParams
from tests.support.drawing import draw, tokens_of

LOGITS = [2.0, -1.0, 0.5, 1.5, 0.0, 1.0, -3.0, 0.8]
PROMPT = [0, 1, 1]


def by_hand(params: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    """Return LOGITS as the documentation of OpenAI and vLLM changes them."""
    bias = dict(params.logit_bias)
    changed = []
    for token, given in enumerate(LOGITS):
        logit, count = given, output.count(token)
        if token in prompt or count:
            repetition = params.repetition_penalty
            logit = logit / repetition if logit > 0 else logit * repetition
        logit -= params.frequency_penalty * count + params.presence_penalty * bool(count)
        changed.append(logit + bias.get(token, 0.0))
    return changed


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.5},
        {"repetition_penalty": 0.7},
        {"presence_penalty": 0.9},
        {"frequency_penalty": 0.4},
        {"frequency_penalty": -0.2},
        {"logit_bias": ((6, 5.0), (0, -100.0))},
        {
            "repetition_penalty": 1.3,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.3,
            "logit_bias": ((4, 1.5), (1, 2.0)),
        },
    ],
    ids=str,
)
def test_each_token_follows_the_documented_formulas(settings: dict[str, Any]) -> None:
    """Greedy picks are the best of the logits worked out anew from all that was said before."""
    params = SamplingParams(**settings)
    sampler = Sampler(params, prompt=PROMPT)
    row = torch.tensor(LOGITS)
    output: list[int] = []
    for _ in range(40):
        expected = by_hand(params, PROMPT, output)
        token = draw(sampler, row)
        assert expected[token] == pytest.approx(max(expected), abs=1e-4)
        output.append(token)
    assert row.tolist() == torch.tensor(LOGITS).tolist(), "the model's logits were changed"


def test_presence_and_frequency_count_the_output_alone() -> None:
    """What only the prompt holds is penalised by repetition_penalty and by nothing else."""
    for params, first in (
        (SamplingParams(presence_penalty=2.0, frequency_penalty=2.0), 0),
        (SamplingParams(repetition_penalty=2.0), 3),
    ):
        sampler = Sampler(params, prompt=[0])
        assert draw(sampler, torch.tensor(LOGITS)) == first


def test_rows_of_a_batch_are_adjusted_each_by_its_own() -> None:
    """Penalties of one row never reach its neighbours, whatever their order."""
    options: tuple[dict[str, Any], ...] = (
        {},
        {"repetition_penalty": 1.9},
        {"presence_penalty": 1.2},
        {"logit_bias": ((6, 50.0),)},
        {"frequency_penalty": 0.6, "temperature": 1.0, "seed": 3},
    )
    together = [Sampler(SamplingParams(**each), prompt=PROMPT) for each in options]
    alone = [Sampler(SamplingParams(**each), prompt=PROMPT) for each in options]
    row = torch.tensor(LOGITS)
    for _ in range(30):
        expected = [draw(sampler, row) for sampler in alone]
        assert tokens_of([row] * len(options), together) == expected


def test_counts_outgrow_any_first_guess() -> None:
    """A long answer of distinct tokens is counted to its end: no token is said twice."""
    sampler = Sampler(SamplingParams(presence_penalty=2.0))
    row = torch.linspace(1.0, 0.0, 500)
    assert sorted(draw(sampler, row) for _ in range(500)) == list(range(500))


def test_min_tokens_keeps_the_ends_away() -> None:
    """Tokens that end the answer come only after min_tokens others."""
    sampler = Sampler(SamplingParams(min_tokens=3), end_ids=[0, 3])
    assert [draw(sampler, torch.tensor(LOGITS)) for _ in range(5)] == [5, 5, 5, 0, 0]


@pytest.mark.parametrize(
    ("min_p", "temperature", "kept"),
    [(0.5, 1.0, {0, 3}), (0.3, 1.0, {0, 3, 5, 7}), (1.0, 1.0, {0}), (0.5, 3.0, {0, 2, 3, 4, 5, 7})],
)
def test_min_p_is_a_share_of_the_best_chance(
    min_p: float, temperature: float, kept: set[int]
) -> None:
    """After the temperature, what is less likely than min_p times the best is never drawn."""
    sampler = Sampler(SamplingParams(temperature=temperature, min_p=min_p, seed=2))
    row = torch.tensor(LOGITS)
    counts = Counter(draw(sampler, row) for _ in range(3000))
    assert set(counts) == kept
    weights = {token: math.exp(LOGITS[token] / temperature) for token in kept}
    for token, weight in weights.items():
        chance = weight / sum(weights.values())
        deviation = math.sqrt(chance * (1 - chance) / 3000)
        assert abs(counts[token] / 3000 - chance) <= 4.5 * deviation + 1e-9


def test_a_wide_nucleus_is_drawn_from_in_full() -> None:
    """Where more tokens share top_p than are looked at first, all of them can come, no other."""
    n_tokens, top_p = 4 * CANDIDATES, 0.5
    row = torch.linspace(0.01, 0.0, n_tokens)
    sampler = Sampler(SamplingParams(temperature=1.0, top_p=top_p, seed=4))
    drawn = {draw(sampler, row) for _ in range(20_000)}
    chances = torch.softmax(row.double(), 0)
    size = int((chances.cumsum(0) - chances < top_p).sum())
    assert max(drawn) < size
    assert len(drawn) > 0.99 * size


def test_all_bits_of_a_seed_count() -> None:
    """Seeds that agree in their low 32 bits, and choices of one seed, draw different tokens."""
    row = torch.zeros(1000)

    def said(seed: int, choice: int = 0) -> tuple[int, ...]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed, choice=choice))
        return tuple(draw(sampler, row) for _ in range(12))

    seeds = [5, 5 + 2**32, 5 + 2**40, 5 - 2**63, 6]
    assert len({said(seed, choice) for seed in seeds for choice in (0, 1, 2)}) == 15
    assert said(5, 1) == said(5, 1)


def softmax_log(row: Tensor) -> list[float]:
    return [float(value) for value in torch.log_softmax(row.double(), 0)]


def test_scores_are_the_models_own() -> None:
    """Log-probabilities ignore bias, penalties and temperature; the tops are the best in order."""
    row = torch.tensor(LOGITS)
    asked = SamplingParams(
        top_scores=3, temperature=2.0, seed=1, logit_bias=((6, 90.0),), repetition_penalty=1.5
    )
    plain = SamplingParams(top_scores=0)
    picks = choose_tokens([row] * 3, [Sampler(asked), Sampler(plain), Sampler(SamplingParams())])
    first, second, none = (pick.score if pick else None for pick in picks)
    expected = softmax_log(row)
    assert first is not None
    assert second is not None
    assert none is None
    assert first.token_id == 6
    assert first.logprob == pytest.approx(expected[6], abs=1e-5)
    assert [token for token, _ in first.top] == [0, 3, 5]
    assert [value for _, value in first.top] == pytest.approx(
        [expected[0], expected[3], expected[5]], abs=1e-5
    )
    assert (second.token_id, second.top) == (0, ())
    assert second.logprob == pytest.approx(expected[0], abs=1e-5)
