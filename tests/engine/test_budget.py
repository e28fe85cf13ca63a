"""Steps bounded in time: how many prompt tokens one takes, and what it learns from the last."""

from __future__ import annotations

import pytest

from prefixcache.engine.budget import MIN_TOKENS, QUIET_STEPS, StepBudget
from tests.support.models import Bench, prompt_ids


def budget_of(first_tokens: int = 100, max_tokens: int = 4000) -> StepBudget:
    return StepBudget(step_seconds=0.5, max_tokens=max_tokens, first_tokens=first_tokens)


@pytest.mark.parametrize("tokens_per_second", [200, 1000, 6000])
def test_steps_come_to_take_the_set_time(tokens_per_second: int) -> None:
    """Whatever the machine's speed, full steps soon last about step_seconds."""
    budget = budget_of()
    for _ in range(12):
        budget.record(budget.tokens, budget.tokens / tokens_per_second)
    assert budget.tokens == pytest.approx(0.5 * tokens_per_second, rel=0.02)


def test_a_machine_that_changes_speed_is_followed() -> None:
    """A budget learned when the machine was idle shrinks when it is busy."""
    budget = budget_of()
    for speed, wanted in ((4000, 2000), (400, 200), (4000, 2000)):
        for _ in range(12):
            budget.record(budget.tokens, budget.tokens / speed)
        assert budget.tokens == pytest.approx(wanted, rel=0.02)


def test_the_budget_has_bounds() -> None:
    """It never exceeds the set maximum, and never falls so low that prompts stand still."""
    assert budget_of(first_tokens=5000).tokens == 4000
    budget = budget_of()
    for _ in range(20):
        budget.record(100, 1e-6)
    assert budget.tokens == 4000
    for _ in range(40):
        budget.record(100, 1000.0)
    assert budget.tokens == MIN_TOKENS


@pytest.mark.parametrize(("n_tokens", "seconds"), [(MIN_TOKENS - 1, 1e-3), (1, 5.0), (100, 0.0)])
def test_steps_that_say_nothing_teach_nothing(n_tokens: int, seconds: float) -> None:
    """Steps of a few decodes, and those too short to be timed, leave the budget alone."""
    budget = budget_of()
    budget.record(n_tokens, seconds)
    assert budget.tokens == 100


def test_decodes_count_towards_the_maximum_of_a_step() -> None:
    """What decodes take is not there for prompts, however much time there would be."""
    budget = budget_of(first_tokens=4000)
    assert [budget.room(n_decodes) for n_decodes in (0, 16, 4001)] == [4000, 3984, 0]


def test_steps_without_decodes_are_longer() -> None:
    """While nobody waits for a next token a step takes twice as much, in whole tiles."""
    budget = budget_of(first_tokens=200)
    assert (budget.aim(1), budget.aim(0)) == (200, 384)
    assert budget_of(first_tokens=100).aim(0) == 200
    assert budget_of(first_tokens=3000).aim(0) == 3968


class Clock:
    """A clock that moves by `seconds` between two looks."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self.seconds
        return self._now


def largest_step(bench: Bench, first_step: int) -> int:
    return max(step.token_ids.shape[1] for step in bench.model.steps[first_step:])


@pytest.mark.parametrize(
    ("seconds", "least", "most"),
    [(60.0, MIN_TOKENS, 1.25 * QUIET_STEPS * MIN_TOKENS), (1e-4, 400, 400)],
)
def test_the_engine_paces_prompts_by_its_clock(seconds: float, least: int, most: int) -> None:
    """On a slow machine long prompts are cut small; on a fast one they are taken whole."""
    bench = Bench(clock=Clock(seconds))
    for seed in range(4):
        bench.run(prompt_ids(400, seed=seed), 1)
    n_before = len(bench.model.steps)
    bench.run(prompt_ids(400, seed=9), 1)
    assert least <= largest_step(bench, n_before) <= most


def test_decodes_go_on_beside_a_long_prompt() -> None:
    """While a long prompt is read in chunks, every step gives the running request a token."""
    bench = Bench(max_step_tokens=20)
    bench.submit("talker", prompt_ids(5), 30)
    bench.step()
    bench.submit("reader", prompt_ids(200, seed=2), 1)
    n_before = len(bench.model.steps)

    def has_read() -> bool:
        n_steps = len(bench.model.steps) - n_before
        assert len(bench.answers["talker"].token_ids) == 1 + n_steps
        return bool(bench.answers["reader"].token_ids)

    bench.step_until(has_read, max_steps=25)
    assert len(bench.model.steps) - n_before >= 9
    assert largest_step(bench, n_before) <= 20  # the other's one token counts too
