"""With the cache, whatever its state, the answer is the one that transformers gives."""

from __future__ import annotations

import pytest
import torch

from tests.support.models import (
    ARCHITECTURES,
    LOGIT_TOLERANCE,
    Bench,
    Expected,
    oracle,
    prompt_ids,
)

PROMPT = prompt_ids(42, seed=1)
BLOCK = 4


@pytest.fixture(params=ARCHITECTURES)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(request.param, max_step_tokens=32)


def assert_same(bench: Bench, expected: Expected, token_ids: list[int]) -> None:
    """The tokens agree, and so do the logits of the rows that chose them."""
    assert expected.is_same(token_ids)
    found = torch.stack(bench.model.rows[-len(token_ids) :])
    torch.testing.assert_close(found, expected.logits, atol=LOGIT_TOLERANCE, rtol=LOGIT_TOLERANCE)


def test_cold_equals_generate(bench: Bench) -> None:
    """A first request, read in several chunks, gives generate's tokens and logits."""
    answer = bench.run(PROMPT, 12)
    assert answer.cached_tokens == 0
    assert_same(bench, oracle(bench.reference, PROMPT, 12), answer.token_ids)


def test_whole_prompt_cached_equals_generate(bench: Bench) -> None:
    """A prompt that is wholly cached computes at least one token, and answers the same."""
    bench.run(PROMPT, 12)
    answer = bench.run(PROMPT, 12)
    assert answer.cached_tokens is not None
    assert len(PROMPT) - BLOCK <= answer.cached_tokens < len(PROMPT)
    assert_same(bench, oracle(bench.reference, PROMPT, 12), answer.token_ids)


def test_partial_hit_equals_generate(bench: Bench) -> None:
    """A prompt that shares whole blocks with an earlier one computes the rest alone."""
    bench.run(PROMPT, 4)
    other = PROMPT[:20] + prompt_ids(9, seed=2)
    assert other[20] != PROMPT[20]
    answer = bench.run(other, 12)
    assert answer.cached_tokens == 20
    assert_same(bench, oracle(bench.reference, other, 12), answer.token_ids)


def test_hit_that_ends_inside_a_block_equals_generate(bench: Bench) -> None:
    """A prompt that leaves a block midway reuses that block's shared tokens by copy.

    Where windows let go of what they have passed, whole blocks are reused alone.
    """
    bench.run(PROMPT, 4)
    other = [*PROMPT[:22], (PROMPT[22] + 1) % 320, *prompt_ids(7, seed=3)]
    answer = bench.run(other, 12)
    has_windows = bench.engine._scheduler._windows.is_needed
    assert answer.cached_tokens == (20 if has_windows else 22)
    assert_same(bench, oracle(bench.reference, other, 12), answer.token_ids)
    again = bench.run(PROMPT, 4)
    assert_same(bench, oracle(bench.reference, PROMPT, 4), again.token_ids)


def test_next_turn_of_a_conversation_hits_the_answer(bench: Bench) -> None:
    """Prompt and answer, less the last token, are found by the turn that continues them."""
    first = bench.run(PROMPT, 9)
    known = len(PROMPT) + 9 - 1
    turn = PROMPT + first.token_ids + prompt_ids(6, seed=4)
    answer = bench.run(turn, 8)
    assert answer.cached_tokens == known // BLOCK * BLOCK
    assert_same(bench, oracle(bench.reference, turn, 8), answer.token_ids)


def test_after_eviction_equals_generate(bench: Bench) -> None:
    """What was evicted is computed again, also when only its tail went."""
    bench.run(PROMPT, 8)
    bench.engine.cache.evict(4)
    answer = bench.run(PROMPT, 8)
    assert answer.cached_tokens is not None
    assert 0 < answer.cached_tokens < len(PROMPT) - BLOCK
    assert_same(bench, oracle(bench.reference, PROMPT, 8), answer.token_ids)
    bench.engine.cache.evict(10_000)
    answer = bench.run(PROMPT, 8)
    assert answer.cached_tokens == 0
    assert_same(bench, oracle(bench.reference, PROMPT, 8), answer.token_ids)


def test_batched_requests_equal_their_solo_runs(bench: Bench) -> None:
    """Requests of different lengths and hits, side by side, each answer as alone."""
    bench.run(PROMPT, 4)
    prompts = [
        PROMPT,
        PROMPT[:17],
        PROMPT[:30] + prompt_ids(11, seed=5),
        prompt_ids(1, seed=6),
        prompt_ids(70, seed=7),
    ]
    for number, prompt in enumerate(prompts):
        bench.submit(f"r{number}", prompt, 10)
    bench.drain()
    for number, prompt in enumerate(prompts):
        expected = oracle(bench.reference, prompt, 10)
        assert expected.is_same(bench.answers[f"r{number}"].token_ids)


def test_scattered_blocks_equal_generate(bench: Bench) -> None:
    """A pool in pieces, so that a table has many short runs, changes no answer."""
    names = [f"s{number}" for number in range(6)]
    for number, name in enumerate(names):
        bench.submit(name, prompt_ids(13, seed=20 + number), 30)
    bench.drain()
    for number, name in enumerate(names):
        expected = oracle(bench.reference, prompt_ids(13, seed=20 + number), 30)
        assert expected.is_same(bench.answers[name].token_ids)
