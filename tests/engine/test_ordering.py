"""What every order of admission promises, and what the cache-aware one adds."""

from __future__ import annotations

from typing import Any

import pytest

from prefixcache.config import AdmissionOrderName
from prefixcache.engine.ordering import LOOKS_A_STEP, AdmissionOrder, CacheAwareOrder, make_order
from prefixcache.engine.sequence import Sequence
from prefixcache.types import Started
from tests.engine.test_shares import reader
from tests.support.models import Bench, prompt_ids

NAMES: tuple[AdmissionOrderName, ...] = ("cache-aware", "fcfs")


class Lengths:
    """Cached lengths by sequence, and how often they were asked for."""

    def __init__(self) -> None:
        self.by_sequence: dict[Sequence, int] = {}
        self.n_looks = 0

    def __call__(self, sequence: Sequence) -> int:
        self.n_looks += 1
        return self.by_sequence.get(sequence, 0)


def ranks(order: AdmissionOrder, waiting: list[Sequence]) -> list[int]:
    return [order.rank(sequence) for sequence in waiting]


@pytest.mark.parametrize("name", NAMES)
def test_looking_costs_a_bounded_number_of_look_ups(name: AdmissionOrderName) -> None:
    """However many wait, a step asks for no more than its number of lengths."""
    lengths = Lengths()
    order = make_order(name, lengths)
    waiting = [reader(5) for _ in range(200)]
    for n_steps in range(1, 4):
        order.look(waiting)
        assert lengths.n_looks <= n_steps * LOOKS_A_STEP


@pytest.mark.parametrize("name", NAMES)
def test_ranks_stand_until_the_next_look(name: AdmissionOrderName) -> None:
    """Whatever is cached meanwhile, within a step the places stay."""
    lengths = Lengths()
    order = make_order(name, lengths)
    waiting = [reader(5) for _ in range(5)]
    order.look(waiting)
    before = ranks(order, waiting)
    lengths.by_sequence[waiting[3]] = 4
    assert ranks(order, waiting) == before


@pytest.mark.parametrize("name", NAMES)
def test_who_has_nothing_cached_keeps_the_order_of_arrival(name: AdmissionOrderName) -> None:
    """Without hits all are alike, looked up or not."""
    order = make_order(name, Lengths())
    waiting = [reader(5) for _ in range(40)]
    order.look(waiting)
    assert len(set(ranks(order, waiting))) == 1


@pytest.mark.parametrize("name", NAMES)
def test_forgetting_leaves_the_others_alone(name: AdmissionOrderName) -> None:
    """Known and unknown ones may go, once or twice."""
    lengths = Lengths()
    order = make_order(name, lengths)
    waiting = [reader(5) for _ in range(3)]
    lengths.by_sequence = dict.fromkeys(waiting, 4)
    order.look(waiting)
    before = ranks(order, waiting[1:])
    for gone in (waiting[0], waiting[0], reader(5)):
        order.forget(gone)
    assert ranks(order, waiting[1:]) == before


def test_estimates_follow_the_cache() -> None:
    """Within as many steps as it takes to look at all, each estimate is renewed."""
    lengths = Lengths()
    order = CacheAwareOrder(lengths, most_looks=4)
    waiting = [reader(5) for _ in range(10)]
    for _ in range(3):
        order.look(waiting)
    lengths.by_sequence = {sequence: number for number, sequence in enumerate(waiting)}
    for _ in range(3):
        order.look(waiting)
    assert ranks(order, waiting) == [-number for number in range(10)]


def started(bench: Bench) -> list[str]:
    names: list[str] = []
    while bench.engine.has_work:
        names += [event.request_id for event in bench.step() if isinstance(event, Started)]
    return names


def warm_last(order: AdmissionOrderName, **settings: Any) -> list[str]:
    """Return the order of three cold requests and then a warm one, one running at a time."""
    bench = Bench(max_running_requests=1, admission_order=order, **settings)
    warm = prompt_ids(24, seed=9)
    bench.run(warm, 1)
    for number in range(3):
        bench.submit(f"cold{number}", prompt_ids(8, seed=number), 2)
    bench.submit("warm", [*warm, 1], 2)
    return started(bench)


def test_the_longest_cached_prefix_goes_first() -> None:
    """A warm request passes cold ones, which keep their order; first come first served not."""
    assert warm_last("cache-aware") == ["warm", "cold0", "cold1", "cold2"]
    assert warm_last("fcfs") == ["cold0", "cold1", "cold2", "warm"]
    assert warm_last("cache-aware", max_overtakes=0) == ["cold0", "cold1", "cold2", "warm"]


@pytest.mark.parametrize("most", [1, 3])
def test_nobody_is_overtaken_more_often_than_set(most: int) -> None:
    """Under an endless stream of warm requests a cold one has its turn after `max_overtakes`."""
    bench = Bench(max_running_requests=1, max_overtakes=most)
    warm = prompt_ids(24, seed=9)
    bench.run(warm, 1)
    bench.submit("cold", prompt_ids(8), 1)
    names: list[str] = []
    for number in range(8):
        bench.submit(f"warm{number}", [*warm, number], 1)
        names += [event.request_id for event in bench.step() if isinstance(event, Started)]
    assert names.index("cold") == most


def test_the_limit_of_overtakes_holds_among_those_of_one_step() -> None:
    """With room for all at once, a cold one is admitted after as many warm ones as may pass it."""
    bench = Bench(max_overtakes=2)
    warm = prompt_ids(24, seed=9)
    bench.run(warm, 1)
    bench.submit("cold", prompt_ids(8), 1)
    for number in range(5):
        bench.submit(f"warm{number}", [*warm, number], 1)
    assert started(bench) == ["warm0", "warm1", "cold", "warm2", "warm3", "warm4"]


def test_of_those_who_must_be_next_the_first_to_come_goes_first() -> None:
    """Those passed within one step do not pass each other, however much is cached of them."""
    bench = Bench(max_overtakes=1)
    warm = prompt_ids(48, seed=9)
    bench.run(warm, 1)
    bench.submit("cold", prompt_ids(8), 1)
    bench.submit("warm", [*warm[:24], 1], 1)
    bench.submit("warmest", [*warm, 2], 1)
    assert started(bench) == ["warmest", "cold", "warm"]
