"""Counters over time, for the dashboard."""

from __future__ import annotations

import msgspec
import pytest

from gateway.backends.local import IDLE_STATS
from gateway.trends import Trends, quantile
from prefixcache.types import EngineStats, PoolCounts
from tests.support.tenancy import HandClock


class Source:
    """An engine's numbers and the gateway's times, as a test sets them."""

    def __init__(self) -> None:
        self.stats = IDLE_STATS
        self.times: list[float] = []

    def now(self) -> EngineStats:
        return self.stats

    def take(self) -> list[float]:
        taken, self.times = self.times, []
        return taken


def test_an_interval_has_what_was_added_in_it() -> None:
    """Counters are differences to the sample before, gauges are as they are."""
    source, clock = Source(), HandClock(100.0)
    trends = Trends(source.now, source.take, clock, most=3)
    source.stats = msgspec.structs.replace(
        IDLE_STATS, prompt_tokens_total=50, cached_tokens_total=20, running=2, waiting_tokens=7
    )
    source.times = [0.3, 0.1, 0.2]
    trends.sample()
    source.stats = msgspec.structs.replace(
        source.stats, prompt_tokens_total=80, pool=PoolCounts(free=1, cached=2, held=3)
    )
    clock.now = 105.0
    trends.sample()
    first, second = trends.intervals
    assert (first.end, first.prompt_tokens, first.cached_tokens) == (100.0, 50, 20)
    assert (first.first_tokens, first.first_token_median_seconds) == (3, 0.2)
    assert (first.running, first.waiting_tokens) == (2, 7)
    assert (second.end, second.prompt_tokens, second.cached_tokens) == (105.0, 30, 0)
    assert second.first_token_p95_seconds is None
    assert (second.free_blocks, second.cached_blocks, second.held_blocks) == (1, 2, 3)


def test_the_oldest_intervals_are_forgotten() -> None:
    """No more are kept than were asked for."""
    source, clock = Source(), HandClock()
    trends = Trends(source.now, source.take, clock, most=2)
    for clock.now in (1.0, 2.0, 3.0):
        trends.sample()
    assert [interval.end for interval in trends.intervals] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("ordered", "part", "expected"),
    [([], 0.5, None), ([1.0], 0.95, 1.0), ([1.0, 2.0], 0.5, 1.0), (list(range(1, 101)), 0.95, 95)],
)
def test_a_quantile_is_a_value_that_was_seen(
    ordered: list[float], part: float, expected: float | None
) -> None:
    """It is the nearest rank: no value is made up between two."""
    assert quantile(ordered, part) == expected
