"""What OpenAI's cache fields come to."""

from __future__ import annotations

import pytest

from gateway.api.openai_cache import CachePlan, Marked, PromptCacheOptions, plan_cache
from prefixcache.types import Retain

HALF_HOUR, HALF_DAY = 1800.0, 12 * 3600.0
FIVE = [Marked(n, None) for n in (10, 20, 30, 40, 50)]


def plan(breakpoints: list[Marked] | None = None, **options: str) -> CachePlan:
    asked = PromptCacheOptions(**options) if options else None  # type: ignore[arg-type]
    return plan_cache(asked, breakpoints or [], n_tokens=100)


def test_without_fields_all_is_cached_and_nothing_retained() -> None:
    """A body that says nothing is cached as room allows."""
    assert plan() == CachePlan(True)
    assert plan(mode="implicit") == CachePlan(True)


def test_implicit_keeps_the_latest_three_breakpoints() -> None:
    """Of five breakpoints the last three stay, for half an hour where nothing else is said."""
    assert plan(FIVE).retain == tuple(Retain(n, HALF_HOUR) for n in (30, 40, 50))


def test_an_implicit_lifetime_is_for_the_whole_prompt() -> None:
    """The automatic breakpoint is the prompt's end, beside three others."""
    expected = tuple(Retain(n, HALF_DAY) for n in (30, 40, 50, 100))
    assert plan(FIVE, ttl="12h").retain == expected
    assert plan(ttl="30m").retain == (Retain(100, HALF_HOUR),)


def test_explicit_keeps_the_latest_four_breakpoints_alone() -> None:
    """In explicit mode there is no automatic breakpoint."""
    expected = tuple(Retain(n, HALF_HOUR) for n in (20, 30, 40, 50))
    assert plan(FIVE, mode="explicit", ttl="30m").retain == expected


def test_explicit_without_breakpoints_does_without_the_cache() -> None:
    """Nothing is read and nothing written."""
    assert plan(mode="explicit") == CachePlan(False)


@pytest.mark.parametrize("mode", ["implicit", "explicit"])
def test_a_breakpoints_own_lifetime_wins(mode: str) -> None:
    """A breakpoint may stay longer, or not as long, as the request's options say."""
    marks = [Marked(10, "30m"), Marked(20, "12h"), Marked(30, None)]
    found = plan(marks, mode=mode, ttl="12h").retain
    assert found[:3] == (Retain(10, HALF_HOUR), Retain(20, HALF_DAY), Retain(30, HALF_DAY))


def test_breakpoints_in_one_place_are_one() -> None:
    """The longest lifetime counts, and a breakpoint before any token is none."""
    marks = [Marked(0, None), Marked(10, "12h"), Marked(10, "30m")]
    assert plan(marks).retain == (Retain(10, HALF_DAY),)
