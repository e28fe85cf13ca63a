"""Requests that had to give way, and what they find when they come back."""

from __future__ import annotations

import pytest

from prefixcache.types import RequestId
from tests.support.models import Bench, oracle, prompt_ids

BLOCK = 4


def crowded(n_blocks: int, n_prompt: int, n_first: int, n_second: int) -> Bench:
    """Return a bench with two growing requests, run up to the moment when `second` gave way."""
    bench = Bench(n_blocks=n_blocks, growth_blocks=0)
    bench.submit("first", prompt_ids(n_prompt, seed=1), n_first)
    bench.submit("second", prompt_ids(n_prompt, seed=2), n_second)
    bench.step_until(lambda: bench.engine.stats().preemptions_total)
    assert bench.engine.stats().waiting == 1
    return bench


def assert_answers_as_alone(bench: Bench, n_prompt: int, n_first: int, n_second: int) -> None:
    for name, seed, n in (("first", 1, n_first), ("second", 2, n_second)):
        expected = oracle(bench.reference, prompt_ids(n_prompt, seed=seed), n)
        assert expected.is_same(bench.answers[name].token_ids)
        assert bench.answers[name].finished.usage.output_tokens == n


def test_a_resumed_request_computes_only_what_was_evicted() -> None:
    """Its blocks stay in the tree when it gives way, and it takes up again what is left."""
    bench = crowded(12, 20, 8, 24)
    at_preemption = bench.engine.stats()
    assert at_preemption.pool.cached == 5  # six blocks were its own; the other has taken one
    bench.drain()
    assert_answers_as_alone(bench, 20, 8, 24)
    stats = bench.engine.stats()
    assert stats.preemptions_total == 1
    # without the preemption: both prompts, and each output but its last token
    assert stats.computed_tokens_total == (20 + 7) + (20 + 23) + BLOCK
    assert stats.evicted_blocks_total >= 1
    assert stats.pool.held == 0


def test_cached_tokens_are_those_of_the_first_admission() -> None:
    """Resuming after 30 tokens of output, its own KV is no hit of its prompt."""
    bench = crowded(20, 8, 36, 40)
    assert len(bench.answers["second"].token_ids) >= 30
    bench.drain()
    assert_answers_as_alone(bench, 8, 36, 40)
    assert bench.answers["second"].finished.usage.cached_tokens == 0
    stats = bench.engine.stats()
    assert stats.prompt_tokens_total == 16
    assert stats.cached_tokens_total == 0
    assert stats.computed_tokens_total == (8 + 35) + (8 + 39) + BLOCK  # its output was kept too


def test_a_hit_before_a_preemption_is_counted_once() -> None:
    """The count of a warm prompt stands as it was, below the prompt's length."""
    bench = Bench(n_blocks=20, growth_blocks=0)
    bench.run(prompt_ids(8, seed=2), 1)
    bench.submit("first", prompt_ids(8, seed=1), 36)
    bench.submit("second", prompt_ids(8, seed=2), 40)
    bench.drain()
    stats = bench.engine.stats()
    assert stats.preemptions_total >= 1
    assert bench.answers["second"].cached_tokens == 7
    assert bench.answers["second"].finished.usage.cached_tokens == 7
    assert (stats.prompt_tokens_total, stats.cached_tokens_total) == (24, 7)
    assert_answers_as_alone(bench, 8, 36, 40)


def test_replayed_output_is_known_once() -> None:
    """Right after the resume, and at the end, no doubled sequence is in the tree."""
    bench = crowded(12, 20, 8, 24)
    bench.step_until(lambda: not bench.engine.stats().waiting)
    prompt, output = prompt_ids(20, seed=2), list(bench.answers["second"].token_ids)
    for _ in range(2):
        known = len(prompt) + len(output)
        assert known - 2 * BLOCK <= bench.matchable([*prompt, *output, 7]) < known
        assert bench.matchable([*prompt, *output, *output, 7]) < known + BLOCK
        assert bench.matchable([*prompt, *prompt, *output]) <= len(prompt) + BLOCK
        bench.drain()
        output = list(bench.answers["second"].token_ids)
    assert_answers_as_alone(bench, 20, 8, 24)


def test_a_request_cancelled_while_preempted_is_gone() -> None:
    """It holds nothing while it waits, and nothing comes after its end."""
    bench = crowded(12, 20, 8, 24)
    n_shown = len(bench.answers["second"].token_ids)
    bench.engine.cancel(RequestId("second"))
    bench.drain()
    usage = bench.answers["second"].failed.usage
    assert usage is not None
    assert usage.output_tokens == n_shown == len(bench.answers["second"].token_ids)
    assert oracle(bench.reference, prompt_ids(20, seed=1), 8).is_same(
        bench.answers["first"].token_ids
    )
    assert bench.n_held == 0


@pytest.mark.parametrize(("growth_blocks", "n_held"), [(0, 3), (1, 3), (3, 5)])
def test_growing_requests_take_blocks_in_portions(growth_blocks: int, n_held: int) -> None:
    """A request starts with its prompt's blocks and one token's; then it takes growth_blocks."""
    bench = Bench(growth_blocks=growth_blocks)
    bench.submit("r", prompt_ids(4), 20)
    for _ in range(5):  # prompt and four tokens fill two blocks
        bench.step()
        assert bench.n_held == 2
    bench.step()
    assert bench.n_held == n_held
    bench.drain()


def test_nobody_passes_one_whose_answer_has_begun() -> None:
    """A request that would fit beside the older one waits until the preempted one is back."""
    bench = crowded(12, 20, 8, 24)
    bench.submit("late", prompt_ids(3, seed=9), 1)
    n_before = len(bench.answers["second"].token_ids)
    bench.step_until(lambda: bench.answers["late"].token_ids)
    assert len(bench.answers["second"].token_ids) >= n_before
    assert bench.answers["first"].ending is not None
    bench.drain()
    assert_answers_as_alone(bench, 20, 8, 24)
