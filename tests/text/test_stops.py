"""Stop strings: the earliest match ends the text, and only what may grow is held back."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from prefixcache.text import StopMatcher

short_texts = st.text(alphabet="abc", max_size=12)
stop_lists = st.lists(st.text(alphabet="ab", min_size=1, max_size=8), max_size=4)


def streamed(pieces: Sequence[str], stops: Sequence[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown = [matcher.push(piece) for piece in pieces]
    return [*shown, matcher.finish()], matcher.matched


def cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """What a reader of the whole text would do."""
    found = [(text.index(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


def test_a_stop_string_across_pieces_is_found_and_none_of_it_shown() -> None:
    """The text ends right before a stop string, wherever the pieces were cut."""
    shown, matched = streamed(["Once upon a t", "ime", " there", " was"], ["time there"])
    assert ("".join(shown), matched) == ("Once upon a ", "time there")


def test_pieces_that_end_inside_a_match_are_not_sent_twice() -> None:
    """A match that begins in the middle of a piece leaves what came before it, once."""
    shown, matched = streamed(["[end]", "[end]"], ["]["])
    assert ("".join(shown), matched) == ("[end", "][")


def test_of_two_stops_that_start_together_the_shorter_wins() -> None:
    """A stop that is the beginning of another one ends the text first."""
    shown, matched = streamed(["x1", "23", "45"], ["234", "23"])
    assert ("".join(shown), matched) == ("x1", "23")


def test_a_match_waits_for_one_that_started_earlier() -> None:
    """A complete stop inside one that may still come true is undecided until that fails."""
    matcher = StopMatcher(["bcde", "cd"])
    assert matcher.push("abcd") == "a"
    assert matcher.matched is None
    assert matcher.push("e") == ""
    assert matcher.matched == "bcde"

    matcher = StopMatcher(["bcde", "cd"])
    assert matcher.push("abcd") + matcher.push("!") == "ab"
    assert matcher.matched == "cd"


def test_the_end_of_the_text_decides_what_was_undecided() -> None:
    """When the text is over, a complete match counts and a half one is text."""
    shown, matched = streamed(["abcd"], ["bcde", "cd"])
    assert ("".join(shown), matched) == ("ab", "cd")
    shown, matched = streamed(["ab"], ["bcde"])
    assert ("".join(shown), matched) == ("ab", None)


def test_stops_of_many_byte_characters_match_across_pieces() -> None:
    """Characters, not bytes, are compared."""
    shown, matched = streamed(["é終", "わり…"], ["終わり"])
    assert ("".join(shown), matched) == ("é", "終わり")


def test_text_that_cannot_grow_into_a_stop_is_shown_at_once() -> None:
    """A long stop string that never comes delays nothing."""
    matcher = StopMatcher(["#" * 200])
    assert [matcher.push("line ") for _ in range(50)] == ["line "] * 50
    assert matcher.finish() == ""


def test_nothing_is_shown_after_a_match() -> None:
    """Once stopped, pieces that still come are dropped."""
    matcher = StopMatcher(["."])
    assert matcher.push("a.b") == "a"
    assert matcher.push("c") == matcher.finish() == ""


def test_empty_stops_match_nothing() -> None:
    """An empty stop string does not end the text."""
    assert streamed(["ab"], [""]) == (["ab", ""], None)


@given(st.lists(short_texts, max_size=6), stop_lists)
@example(pieces=["aacaab"], stops=["aaab"])
@example(pieces=["aaabaabc"], stops=["aaabc"])
@settings(max_examples=300)
def test_streamed_text_equals_the_whole_text_cut_at_its_earliest_stop(
    pieces: list[str], stops: list[str]
) -> None:
    """However the text is cut into pieces, the outcome is that of reading it whole."""
    shown, matched = streamed(pieces, stops)
    assert ("".join(shown), matched) == cut("".join(pieces), stops)


@given(short_texts, stop_lists)
def test_what_is_held_back_can_grow_into_a_stop(text: str, stops: list[str]) -> None:
    """While nothing matched, held text begins the longest tail that is the start of a stop."""
    matcher = StopMatcher(stops)
    shown = matcher.push(text)
    held = text[len(shown) :]
    if cut(text, stops)[1] is None:
        starts = {stop[:n] for stop in stops for n in range(1, len(stop))}
        growing = [tail for tail in (text[i:] for i in range(len(text))) if tail in starts]
        assert held == max(growing, key=len, default="")


def test_a_stop_that_almost_repeats_itself_costs_no_more() -> None:
    """The text's end is compared in constant time, so a hostile stop string does not stall."""
    stop = "a" * 20_000 + "b"
    matcher = StopMatcher([stop])
    shown = "".join(matcher.push("a" * 100) for _ in range(400))
    assert len(shown) == 20_000
    assert re.fullmatch("a+", shown)
