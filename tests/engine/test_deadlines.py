"""Requests that may not wait or run for ever. Time is the test's own."""

from __future__ import annotations

import gc

import pytest

from prefixcache.engine.sequence import Sequence
from prefixcache.types import FailureKind, FinishReason
from tests.support.models import Bench, prompt_ids


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_who_waits_too_long_fails(clock: Clock) -> None:
    """Past max_queue_seconds a request that was never admitted ends with `queue_timeout`."""
    bench = Bench(max_running_requests=1, max_queue_seconds=5, clock=clock)
    bench.submit("runs", prompt_ids(5), 40)
    bench.step()
    bench.submit("waits", prompt_ids(5, seed=2), 4)
    clock.now += 4.9
    bench.step()
    assert bench.answers["waits"].ending is None
    clock.now += 0.2
    bench.step()
    failed = bench.answers["waits"].failed
    assert failed.kind is FailureKind.QUEUE_TIMEOUT
    assert "5 seconds" in failed.message
    bench.drain()
    assert len(bench.answers["runs"].token_ids) == 40  # it does not wait, it runs
    assert bench.n_held == 0


def test_who_was_preempted_does_not_wait_too_long(clock: Clock) -> None:
    """The limit is for the first admission: an answer that has begun is brought to its end."""
    bench = Bench(n_blocks=12, growth_blocks=0, max_queue_seconds=5, clock=clock)
    for name, seed in (("first", 1), ("second", 2)):
        bench.submit(name, prompt_ids(20, seed=seed), 20)
    bench.step_until(lambda: bench.engine.stats().preemptions_total)
    clock.now += 60
    bench.drain()
    assert len(bench.answers["second"].token_ids) == 20


def test_a_deadline_ends_an_answer_with_what_it_has(clock: Clock) -> None:
    """Past its deadline a request with output ends with reason length, and holds nothing."""
    bench = Bench(clock=clock)
    bench.submit("r", prompt_ids(5), 40, deadline_seconds=3)
    for _ in range(4):
        bench.step()
    clock.now += 3
    bench.drain(max_steps=2)
    finished = bench.answers["r"].finished
    assert finished.reason is FinishReason.LENGTH
    assert finished.usage.output_tokens == len(bench.answers["r"].token_ids) == 4
    assert bench.n_held == 0


@pytest.mark.parametrize("waits", [True, False])
def test_a_deadline_before_any_output_is_an_error(clock: Clock, waits: bool) -> None:
    """Waiting or in the middle of its prompt, a request without output fails at its deadline."""
    bench = Bench(max_step_tokens=4, max_running_requests=1 if waits else 4, clock=clock)
    bench.submit("other", prompt_ids(5), 40)
    bench.step()
    bench.submit("r", prompt_ids(90, seed=2), 4, deadline_seconds=3)
    bench.step()
    assert (bench.answers["r"].cached_tokens is None) == waits
    clock.now += 3
    bench.step()
    assert bench.answers["r"].failed.kind is FailureKind.DEADLINE
    bench.drain()
    assert bench.n_held == 0


def test_requests_that_end_in_time_are_left_alone(clock: Clock) -> None:
    """A deadline that comes after the end changes nothing, also for a later one of that name."""
    bench = Bench(max_queue_seconds=1, clock=clock)
    bench.submit("r", prompt_ids(5), 4, deadline_seconds=3)
    bench.drain()
    clock.now += 10
    bench.submit("r", prompt_ids(5), 4)
    bench.drain()
    assert len(bench.answers["r"].token_ids) == 4


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_a_deadline_that_is_no_time_is_refused(seconds: float) -> None:
    """It must lie ahead."""
    bench = Bench()
    bench.submit("r", [1, 2], 1, deadline_seconds=seconds)
    bench.drain()
    assert bench.answers["r"].failed.kind is FailureKind.INVALID


def test_requests_that_have_ended_are_forgotten(clock: Clock) -> None:
    """However far off their deadlines are, requests that are over take no memory."""
    bench = Bench(max_queue_seconds=1e9, clock=clock)
    for number in range(300):
        bench.submit(f"r{number}", prompt_ids(5), 1, deadline_seconds=1e9)
        bench.drain()
    gc.collect()
    assert sum(type(each) is Sequence for each in gc.get_objects()) < 100
