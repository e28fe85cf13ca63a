"""Sampling at the edge: what is drawn, and settings that are hardly legal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from prefixcache.engine.sampling import Sampler
from prefixcache.types import (
    Failed,
    FailureKind,
    GenerationRequest,
    RequestId,
    SamplingParams,
)
from tests.support.architectures import VOCAB_SIZE
from tests.support.drawing import draw
from tests.support.models import (
    Answer,
    Bench,
    prompt_ids,
)


def reference_chances(logits: Tensor, params: SamplingParams) -> Tensor:
    """Temperature, then the k best, then the fewest of them that reach top_p; one at a time."""
    scaled = (logits.double() / params.temperature).tolist()
    order = sorted(range(len(scaled)), key=lambda token: -scaled[token])[: params.top_k]
    weights = torch.softmax(torch.tensor([scaled[token] for token in order]), 0).tolist()
    chances, mass = torch.zeros(len(scaled)), 0.0
    for token, weight in zip(order, weights, strict=True):
        if mass >= params.top_p:
            break
        chances[token] = weight
        mass += weight
    return chances / chances.sum()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_k": 50},
        {"top_p": 0.8},
        {"top_p": 0.05},
        {"temperature": 0.7, "top_k": 4, "top_p": 0.9},
    ],
)
def test_draws_follow_the_filtered_distribution(options: dict[str, Any]) -> None:
    """Over many draws every token comes as often as the settings say, and no other comes."""
    logits = torch.tensor([2.0, -1.0, 0.5, 1.5, 0.0, 1.0, -3.0, 0.8])
    params = SamplingParams(**{"temperature": 1.0, "seed": 7} | options)
    sampler, n_draws = Sampler(params), 4000
    counts = torch.bincount(
        torch.tensor([draw(sampler, logits) for _ in range(n_draws)]), minlength=8
    )
    expected = reference_chances(logits, params)
    assert not counts[expected == 0].any()
    deviation = (expected * (1 - expected) / n_draws).sqrt()
    assert ((counts / n_draws - expected).abs() <= 4.5 * deviation + 1e-9).all()


def test_requests_without_a_seed_differ() -> None:
    """Two samplers without a seed do not draw the same long sequence."""
    logits = torch.zeros(VOCAB_SIZE)
    first, second = (Sampler(SamplingParams(temperature=1.0)) for _ in range(2))
    assert [draw(first, logits) for _ in range(9)] != [draw(second, logits) for _ in range(9)]


@pytest.mark.parametrize(
    "options",
    [{"temperature": 1e-50}, {"temperature": 5e-324}, {"temperature": 1.0, "top_p": 1e-50}],
)
def test_settings_beyond_float32_choose_the_best_token(options: dict[str, Any]) -> None:
    """Values that are 0 in float32 are legal, act as greedy, and fail no neighbour."""
    bench = Bench()
    bench.submit("odd", prompt_ids(9), 4, **options)
    bench.submit("good", prompt_ids(9), 4)
    bench.drain()
    assert bench.answers["odd"].token_ids == bench.answers["good"].token_ids


def test_step_survives_a_row_that_cannot_be_sampled() -> None:
    """An error while one token is chosen ends that request alone."""
    bench = Bench()
    bench.submit("odd", prompt_ids(9), 4, temperature=1e300)  # -inf / inf is no number
    bench.submit("good", prompt_ids(9), 4)
    forward = bench.model.forward

    def masked(step: Any) -> Tensor:
        logits = forward(step).clone()
        logits[:, 5] = -torch.inf
        return logits

    bench.model.forward = masked  # type: ignore[method-assign]
    bench.drain()
    assert bench.answers["odd"].ending is not None
    assert bench.answers["good"].finished.usage.output_tokens == 4


@pytest.mark.parametrize("seed", [2**63, 2**64, -(2**63) - 1])
def test_seeds_beyond_64_bits_are_refused(seed: int) -> None:
    """A seed that no generator takes fails its request; the widest ones are served."""
    bench = Bench()
    bench.submit("bad", [1, 2], 1, temperature=1.0, seed=seed)
    bench.submit("least", [1, 2], 1, temperature=1.0, seed=-(2**63))
    bench.submit("most", [1, 2], 1, temperature=1.0, seed=2**63 - 1)
    bench.drain()
    refusal = bench.answers["bad"].ending
    assert isinstance(refusal, Failed)
    assert refusal.kind is FailureKind.INVALID
    assert len(bench.answers["least"].token_ids + bench.answers["most"].token_ids) == 2


def test_packed_ids_that_end_inside_one_are_refused() -> None:
    """Five bytes are no prompt: the request fails, and the call that queues it does not."""
    bench = Bench()
    bench.answers["half"] = Answer()
    half = GenerationRequest(
        request_id=RequestId("half"), token_ids=b"\1\0\0\0\2", sampling=SamplingParams()
    )
    bench.engine.submit(half)
    bench.drain()
    refusal = bench.answers["half"].ending
    assert isinstance(refusal, Failed)
    assert refusal.kind is FailureKind.INVALID
