"""Requests in flight together that begin alike: one reads, the others take what it has read."""

from __future__ import annotations

from typing import TypeGuard

import pytest

from prefixcache.engine.scheduler import MOST_WAITS
from prefixcache.types import Event, Finished, RequestId, Started
from tests.support.models import Bench, oracle, prompt_ids

SHARED = prompt_ids(12, seed=1)  # three blocks


def test_eight_cold_requests_read_the_prefix_they_share_once() -> None:
    """The first computes it, the others start behind it, and each answers as alone."""
    bench = Bench(max_step_tokens=4096)
    prompts = [[*SHARED, 1 + number] for number in range(8)]
    for number, prompt in enumerate(prompts):
        bench.submit(f"r{number}", prompt, 16)
    started = [event for event in bench.step() if isinstance(event, Started)]
    assert [event.cached_tokens for event in started] == [0]
    started = [event for event in bench.step() if isinstance(event, Started)]
    assert [event.cached_tokens for event in started] == [12] * 7
    bench.drain()
    assert bench.engine.stats().computed_tokens_total == 12 + 8 * 16
    for number, prompt in enumerate(prompts):
        expected = oracle(bench.reference, prompt, 16)
        assert expected.is_same(bench.answers[f"r{number}"].token_ids)


def test_a_twin_starts_as_soon_as_what_it_shares_is_read() -> None:
    """The reader is not waited for beyond the shared part."""
    bench = Bench(max_step_tokens=12)
    bench.submit("reader", [*SHARED, *prompt_ids(8, seed=2)], 1)
    bench.submit("twin", [*SHARED, 7], 1)
    assert [event.request_id for event in bench.step() if is_start(event)] == ["reader"]
    events = bench.step()
    assert [event.cached_tokens for event in events if is_start(event)] == [12]
    assert {event.request_id for event in events if isinstance(event, Finished)} == {
        "reader",
        "twin",
    }


def test_those_who_share_nothing_are_not_held_up() -> None:
    """A request behind waiting twins passes them."""
    bench = Bench(max_step_tokens=20)
    bench.submit("reader", [*SHARED, 1, 2], 4)
    bench.submit("twin", [*SHARED, 1, 3], 4)
    bench.submit("other", prompt_ids(6, seed=9), 4)
    steps = [[event.request_id for event in bench.step() if is_start(event)] for _ in range(2)]
    assert steps == [["reader", "other"], ["twin"]]
    bench.drain()
    assert all(len(bench.answers[name].token_ids) == 4 for name in ("reader", "twin", "other"))


@pytest.mark.parametrize("n_steps", [1, 2])
def test_when_the_reader_is_cancelled_one_twin_goes_on(n_steps: int) -> None:
    """What was read stays, one of those who waited reads the rest, the others wait for it."""
    bench = Bench(max_step_tokens=4)
    prompts = {f"r{number}": [*SHARED, 1 + number] for number in range(4)}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, 6)
    for _ in range(n_steps):
        bench.step()
    bench.engine.cancel(RequestId("r0"))
    bench.drain()
    assert bench.engine.stats().computed_tokens_total == 12 + 3 * 6
    for name in ("r1", "r2", "r3"):
        assert oracle(bench.reference, prompts[name], 6).is_same(bench.answers[name].token_ids)


def test_a_waiting_twin_can_be_cancelled() -> None:
    """It leaves the queue, and those who wait with it are not disturbed."""
    bench = Bench(max_step_tokens=4)
    for name in ("reader", "left", "stays"):
        bench.submit(name, [*SHARED, *name.encode()], 3)
    bench.step()
    bench.engine.cancel(RequestId("left"))
    bench.drain()
    assert len(bench.answers["stays"].token_ids) == 3
    assert bench.engine.stats().pool.held == 0


def test_a_request_that_does_not_read_the_cache_waits_for_nobody() -> None:
    """It computes everything itself, at once."""
    bench = Bench(max_step_tokens=4096)
    bench.submit("reader", [*SHARED, 1], 2)
    bench.submit("alone", [*SHARED, 2], 2, read_cache=False)
    started = [event for event in bench.step() if is_start(event)]
    assert [event.cached_tokens for event in started] == [0, 0]
    bench.drain()


def is_start(event: Event) -> TypeGuard[Started]:
    return isinstance(event, Started)


def test_a_twin_of_a_request_that_was_preempted_does_not_wait_for_its_answer() -> None:
    """What a resumed request reads again is stored as it is read, its own answer included."""
    bench = Bench(n_blocks=17, max_step_tokens=8)
    read = [*SHARED, *prompt_ids(8, seed=2)]
    bench.submit("older", prompt_ids(8, seed=3), 24)
    bench.submit("younger", read, 40)
    bench.step_until(lambda: bench.engine.stats().preemptions_total)
    assert bench.answers["younger"].token_ids
    bench.engine.cache.evict(17)  # so that it has to read all of it again
    bench.submit("twin", [*read, 9], 2)
    bench.step_until(lambda: bench.answers["twin"].ending is not None)
    assert bench.answers["younger"].ending is None
    bench.drain()
    for name, n in (("older", 24), ("younger", 40), ("twin", 2)):
        assert len(bench.answers[name].token_ids) == n
    assert bench.engine.stats().pool.held == 0


def test_twins_of_a_preempted_reader_wait_for_it_again() -> None:
    """Elected to go on, they find the reader back at work, and let it read for all of them."""
    bench = Bench(max_step_tokens=4)
    prompts = {name: [*SHARED, *SHARED, ord(name[0])] for name in ("reader", "twin", "other")}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, 3)
    for _ in range(3):
        bench.step()
    scheduler = bench.engine._scheduler
    scheduler._preempt(scheduler.running[0])
    bench.drain()
    assert bench.engine.stats().computed_tokens_total == 24 + 3 * 3
    for name, prompt in prompts.items():
        assert oracle(bench.reference, prompt, 3).is_same(bench.answers[name].token_ids)


def test_a_reader_that_is_preempted_over_and_over_holds_no_twin_for_ever() -> None:
    """After some waits a twin waits no more, whoever is at work on what it begins with."""
    bench = Bench(max_step_tokens=4)
    bench.submit("reader", [*SHARED, *SHARED, 1], 3)
    bench.submit("twin", [*SHARED, *SHARED, 2], 3)
    scheduler = bench.engine._scheduler
    twin = bench.engine._answers.in_flight[RequestId("twin")]
    for _ in range(MOST_WAITS):
        bench.step()
        assert twin.is_behind_twin
        scheduler._preempt(scheduler.running[0])
        bench.engine.cache.evict(100)
    bench.step()
    assert not twin.is_behind_twin
    bench.drain()
    assert bench.answers["twin"].finished.usage.output_tokens == 3


def test_nobody_waits_for_one_who_waits() -> None:
    """When the reader is gone and its heir finds no room, who fits reads the prefix itself."""
    bench = Bench(n_blocks=16, max_step_tokens=8, growth_blocks=0)
    bench.submit("holder", prompt_ids(8, seed=5), 30)
    bench.step()
    bench.submit("reader", [*SHARED, 1], 2)
    bench.submit("large", [*SHARED, *prompt_ids(44, seed=6)], 1)
    bench.submit("small", [*SHARED, 2], 1)
    bench.step()
    bench.engine.cancel(RequestId("reader"))
    bench.step_until(lambda: bench.answers["small"].ending, max_steps=6)
    assert bench.answers["holder"].ending is None
    assert bench.answers["large"].ending is None
    bench.drain()
    assert bench.answers["large"].finished
