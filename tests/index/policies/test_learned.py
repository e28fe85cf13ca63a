"""What the learning policy learns, and what it does with that."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixcache.index.policies import EvictionPolicy, LearnedPolicy, LruPolicy
from prefixcache.index.policies.ages import LENGTH_SECONDS, N_AGES, UNTIL_SECONDS, age_of
from prefixcache.index.policies.returns import Returns, worth_by_age
from prefixcache.traces import TraceRequest, optimum, simulate
from tests.traces.public import needs_traces, public_trace


@pytest.mark.parametrize("seconds", [0.0, 0.2, 1.0, 59.0, 3600.0, 1e6, 1e12])
def test_an_age_lies_in_its_bin(seconds: float) -> None:
    """Bins follow each other without gaps, and the last one has no end."""
    age = age_of(seconds)
    assert age == 0 or UNTIL_SECONDS[age - 1] <= seconds
    assert age == N_AGES - 1 or seconds < UNTIL_SECONDS[age]


@settings(deadline=None)
@given(st.lists(st.floats(0, 0.9), min_size=N_AGES, max_size=N_AGES))
def test_worth_is_the_best_that_keeping_can_bring(rates: list[float]) -> None:
    """Of all moments to give up, the one with the most returns per second is taken."""
    for age in range(0, N_AGES, 7):
        returns = seconds = 0.0
        left, best = 1.0, 0.0
        for later in range(age, N_AGES):
            returns += left * rates[later]
            seconds += left * LENGTH_SECONDS[later] * (1 - rates[later] / 2)
            left *= 1 - rates[later]
            best = max(best, returns / seconds)
        assert worth_by_age(rates)[age] == pytest.approx(best)


def test_worth_rises_towards_the_time_at_which_most_come_back() -> None:
    """What always returns after a minute is worth more the nearer that is, and little beyond."""
    returns = Returns([[0]])
    for _ in range(1000):
        returns.count(0, 60.0, returned=True)
        returns.count(0, 1e5, returned=False)
    worth = returns.worths([])[0]
    ages = [age_of(seconds) for seconds in (5, 30, 55)]
    assert worth[ages[0]] < worth[ages[1]] < worth[ages[2]]
    assert worth[age_of(100)] < worth[ages[0]]


def test_those_that_may_still_return_count_as_not_returned() -> None:
    """Else what comes back soon would seem to come back always."""
    returns = Returns([[0]])
    for _ in range(100):
        returns.count(0, 10.0, returned=True)
    alone = returns.worths([])[0]
    beside = returns.worths([(0, 1000.0)] * 900)[0]
    assert beside[age_of(10.0)] < alone[age_of(10.0)] / 2


def test_a_kind_of_which_little_is_known_is_like_its_group() -> None:
    """And not like another group."""
    returns = Returns([[0, 1], [2, 3]])
    for _ in range(500):
        returns.count(0, 10.0, returned=True)
        returns.count(2, 10.0, returned=False)
    worths = returns.worths([])
    at = age_of(8.0)
    assert worths[1][at] > 5 * worths[3][at]


def test_what_was_counted_long_ago_gives_way_to_what_is_counted_now() -> None:
    """When what used to come back does so no more, that outweighs it in time."""
    returns = Returns([[0]])
    for _ in range(1000):
        returns.count(0, 10.0, returned=True)
    before = returns.worths([])[0]
    for _ in range(100):
        returns.fade()
        returns.count(0, 1000.0, returned=False)
        returns.count(0, 1000.0, returned=False)
    after = returns.worths([])[0]
    assert after[age_of(8.0)] < before[age_of(8.0)] / 2


def questions(n_pairs: int) -> list[TraceRequest]:
    """A long prompt with questions that are each asked twice, and prompts of one block between."""
    made: list[TraceRequest] = []
    for n in range(n_pairs):
        question = n // 2 if n % 2 == 0 else n // 2 - 20  # again 41 pairs later
        long = (*range(5), 1000 + question)
        for ids in (long, (100_000 + n,)):
            made.append(TraceRequest(float(len(made)), 16 * len(ids), 1, ids, 16))
    return made


def test_the_end_of_a_known_prompt_is_told_from_a_short_prompt() -> None:
    """Both are one block that was used once, but only the ends are asked for again."""
    requests = questions(2000)
    lru, learned = (hits(requests, policy, 46) for policy in (LruPolicy, LearnedPolicy))
    assert learned - lru > 700  # of 1,000 ends that come back


def test_where_the_longest_unused_is_right_it_goes() -> None:
    """What is asked for again at once, in turn, and never later: nothing else could be better."""
    requests = []
    for n in range(6000):
        ids = (n // 3, 10_000 + n // 3) if n % 3 else (100_000 + n,)
        requests.append(TraceRequest(float(n), 16 * len(ids), 1, ids, 16))
    learned, lru = (hits(requests, policy, 20) for policy in (LearnedPolicy, LruPolicy))
    assert learned == lru == 2000 * 2


def chats(n_requests: int) -> list[TraceRequest]:
    """One request in ten begins ten turns, a minute apart; the others come once."""
    ids = itertools.count()
    due: dict[int, tuple[tuple[int, ...], int]] = {}
    made = []
    for second in range(n_requests):
        before, n_turns = due.pop(second, ((), 10 if second % 10 == 0 else 1))
        prompt = (*before, *itertools.islice(ids, 5))
        made.append(TraceRequest(float(second), 16 * len(prompt), 1, prompt, 16))
        if n_turns > 1 and second + 61 not in due:
            due[second + 61] = prompt, n_turns - 1
    return made


def hits(requests: list[TraceRequest], policy: type[EvictionPolicy], capacity: int) -> int:
    return simulate(requests, policy=policy, capacity_blocks=capacity).hit_blocks


def test_conversations_that_go_on_are_told_from_prompts_that_come_once() -> None:
    """Where the least recently used is never there in time, half of the best is had."""
    requests, capacity = chats(3000), 300
    best = optimum(requests, capacity_blocks=capacity, running_takes_room=True).hit_blocks
    lru, learned = (hits(requests, policy, capacity) for policy in (LruPolicy, LearnedPolicy))
    assert lru < 0.1 * best
    assert learned > 0.5 * best


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), max_size=12), st.integers(1, 9))
def test_without_knowledge_the_longest_unused_goes_first(
    rows: list[tuple[int, ...]], capacity: int
) -> None:
    """A few requests teach nothing, so they hit what they would with `LruPolicy`."""
    requests = [
        TraceRequest(float(second), 4 * len(ids), 1, ids, 4) for second, ids in enumerate(rows)
    ]
    assert hits(requests, LearnedPolicy, capacity) == hits(requests, LruPolicy, capacity)


@needs_traces
@pytest.mark.parametrize(
    ("name", "capacity", "at_least"),
    [
        ("conversation_trace.jsonl", 1000, 17_065),
        ("conversation_trace.jsonl", 10_000, 65_513),
        ("synthetic_trace.jsonl", 1000, 10_253),
        ("synthetic_trace.jsonl", 30_000, 76_078),
        ("synthetic_trace.jsonl", 2000, 17_840),
        ("conversation_trace.jsonl", 40_000, 101_382),
        ("conversation_trace.jsonl", 50_000, 102_290),
        ("weka", 1000, 97_303),
        ("weka", 3000, 173_857),
    ],
)
def test_public_traces_gain_and_do_not_lose(name: str, capacity: int, at_least: int) -> None:
    """A tenth of what can be gained at 1,000 and 10,000 blocks; no less elsewhere."""
    assert hits(public_trace(name), LearnedPolicy, capacity) >= at_least
