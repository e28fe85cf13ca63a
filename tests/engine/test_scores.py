"""Scores of prompts and answers against transformers, and sampling beside other requests."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prefixcache.engine import sequence
from prefixcache.types import (
    Delta,
    Event,
    FailureKind,
    FinishReason,
    PromptScores,
    SamplingParams,
    TokenScore,
)
from tests.support.architectures import VOCAB_SIZE
from tests.support.models import Bench, prompt_ids


def events_of(bench: Bench, name: str) -> list[Event]:
    found: list[Event] = []
    while bench.engine.has_work:
        found += [event for event in bench.step() if event.request_id == name]
    return found


def reference(bench: Bench, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits = bench.reference(torch.tensor([tokens])).logits[0]
    return torch.log_softmax(logits.double(), -1)


def assert_scores(
    scores: list[TokenScore], tokens: list[int], logprobs: torch.Tensor, n_top: int
) -> None:
    assert [score.token_id for score in scores] == tokens
    for score, row in zip(scores, logprobs, strict=True):
        assert score.logprob == pytest.approx(float(row[score.token_id]), abs=2e-3)
        best = torch.topk(row, n_top)
        assert [value for _, value in score.top] == pytest.approx(best.values.tolist(), abs=2e-3)


@pytest.mark.parametrize("rows_at_once", [256, 7])
@pytest.mark.parametrize("n_cached", [0, 40])
def test_every_prompt_token_is_scored(
    monkeypatch: pytest.MonkeyPatch, rows_at_once: int, n_cached: int
) -> None:
    """All prompt tokens but the first have a score, however it is cut, whatever is cached."""
    monkeypatch.setattr(sequence, "MAX_SCORED_ROWS", rows_at_once)
    bench, prompt = Bench(), prompt_ids(50)
    if n_cached:
        bench.run(prompt[:n_cached], 1)
    bench.submit("a", prompt, 3, prompt_scores=2, top_scores=2)
    events = events_of(bench, "a")
    scored = [event for event in events if isinstance(event, PromptScores)]
    said = [event for event in events if isinstance(event, Delta)]
    output = [token for event in said for token in event.token_ids]
    logprobs = reference(bench, prompt + output)
    prompt_scores = [score for event in scored for score in event.scores]
    assert_scores(prompt_scores, prompt[1:], logprobs[:49], 2)
    assert_scores([s for event in said for s in event.scores], output, logprobs[49:-1], 2)
    assert events.index(scored[-1]) < events.index(said[0])
    assert bench.answers["a"].cached_tokens == 0
    assert max(len(event.scores) for event in scored) <= rows_at_once


def test_a_scored_prompt_is_stored() -> None:
    """Reading nothing of the cache, it still leaves its own prompt there."""
    bench, prompt = Bench(), prompt_ids(40)
    bench.run(prompt, 1, prompt_scores=0)
    assert bench.matchable([*prompt, 1]) >= 40


def test_a_preempted_prompt_is_scored_once() -> None:
    """Under pressure every prompt token still has exactly one score, and answers stay the same."""
    roomy = Bench()
    prompts = [prompt_ids(30, seed) for seed in range(3)]
    options: dict[str, Any] = {
        "prompt_scores": 1,
        "temperature": 1.5,
        "seed": 9,
        "presence_penalty": 1.0,
        "top_k": 60,
    }
    expected = [roomy.run(prompt, 40, **options).token_ids for prompt in prompts]
    tight = Bench(n_blocks=34, growth_blocks=0)
    for index, prompt in enumerate(prompts):
        tight.submit(str(index), prompt, 40, **options)
    scores: dict[str, list[int]] = {str(index): [] for index in range(3)}
    while tight.engine.has_work:
        for event in tight.step():
            if isinstance(event, PromptScores):
                scores[event.request_id] += [score.token_id for score in event.scores]
    assert tight.engine.stats().preemptions_total > 0
    assert [scores[str(index)] for index in range(3)] == [prompt[1:] for prompt in prompts]
    assert [tight.answers[str(index)].token_ids for index in range(3)] == expected


def test_no_tokens_may_be_asked_for() -> None:
    """max_tokens 0 reads the prompt, keeps it, and says nothing."""
    bench, prompt = Bench(), prompt_ids(21)
    answer = bench.run(prompt, 0)
    assert answer.token_ids == []
    assert answer.finished.reason is FinishReason.LENGTH
    assert (answer.finished.usage.prompt_tokens, answer.finished.usage.output_tokens) == (21, 0)
    assert bench.matchable([*prompt, 1]) >= 20
    assert bench.n_held == 0


def test_equal_prompts_are_read_once() -> None:
    """Choices that are admitted together wait for the first: it alone computes the prompt."""
    bench, prompt = Bench(), prompt_ids(41)
    for index in range(4):
        bench.submit(str(index), prompt, 6, temperature=1.0, seed=3, choice=index)
    bench.submit("again", prompt, 6, temperature=1.0, seed=3, choice=2)
    bench.drain()
    answers = [bench.answers[str(index)] for index in range(4)]
    assert [answer.cached_tokens for answer in answers] == [0, 40, 40, 40]
    assert len({tuple(answer.token_ids) for answer in answers}) == 4
    assert bench.answers["again"].token_ids == answers[2].token_ids


@pytest.mark.parametrize(
    "options",
    [
        {"min_tokens": -1},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e-320},
        {"repetition_penalty": 1e300},
        {"frequency_penalty": -1e300},
        {"repetition_penalty": float("nan")},
        {"presence_penalty": float("inf")},
        {"frequency_penalty": float("nan")},
        {"logit_bias": ((1, float("inf")),)},
        {"logit_bias": ((VOCAB_SIZE, 1.0),)},
        {"logit_bias": ((-1, 1.0),)},
        {"top_scores": -1},
        {"prompt_scores": -1},
    ],
    ids=str,
)
def test_settings_out_of_range_fail_alone(options: dict[str, Any]) -> None:
    """A request that cannot be sampled is refused by name; its neighbour goes on."""
    bench = Bench()
    bench.submit("bad", prompt_ids(9), 4, **options)
    bench.submit("good", prompt_ids(9), 4)
    bench.drain()
    failed = bench.answers["bad"].failed
    assert failed.kind is FailureKind.INVALID
    assert "token id" in failed.message or next(iter(options)) in failed.message
    assert len(bench.answers["good"].token_ids) == 4


def test_more_scores_than_tokens_are_all_of_them() -> None:
    """Asked for more of the best tokens than there are, the engine gives all."""
    bench = Bench()
    bench.submit("a", prompt_ids(5), 1, top_scores=10**6)
    (delta,) = (event for event in events_of(bench, "a") if isinstance(event, Delta))
    assert len(delta.scores[0].top) == VOCAB_SIZE
    assert SamplingParams().top_scores is None
