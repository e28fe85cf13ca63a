"""What is guessed, how far guesses are trusted, and what a row is taken to cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache.engine.costs import FRESH_STEPS, ROW_SHARE, StepCosts
from prefixcache.engine.drafting import Drafter, Trust
from prefixcache.index import pack, unpack


class Stored:
    """A tree that holds one sequence, and counts how often it is asked."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.n_asked = 0

    def __call__(self, said: bytes, n_most: int) -> bytes:
        self.n_asked += 1
        known = unpack(said)
        n = len(known)
        return pack(self.tokens[n : n + n_most] if self.tokens[:n] == known else [])


def drafted(drafter: Drafter, output: list[int], n_most: int = 4) -> list[int]:
    draft = drafter.draft(output, n_most)
    return [] if draft is None else list(draft.tokens)


def test_what_is_stored_is_guessed_to_its_end() -> None:
    """While an answer follows the tree, it is guessed from there, with few look-ups."""
    tokens = list(range(1000, 1300))
    stored = Stored(tokens)
    drafter = Drafter(pack(tokens[:10]), stored)
    for n in range(290):
        assert drafted(drafter, tokens[10 : 10 + n]) == tokens[10 + n : 14 + n]
    assert stored.n_asked <= 10


def test_where_nothing_is_stored_the_tree_is_seldom_asked() -> None:
    """In vain it is asked after 1, 3, 7, ... tokens, and at last every 64."""
    stored = Stored([])
    drafter = Drafter(pack([1, 2, 3]), stored)
    for n in range(1000):
        drafter.draft(list(range(100, 100 + n)), 4)
    assert stored.n_asked <= 6 + 1000 // 64


def test_an_answer_that_leaves_the_tree_is_guessed_from_it_no_more() -> None:
    """Another token than the stored one, and what follows that one is not guessed."""
    tokens = list(range(1000, 1100))
    drafter = Drafter(pack(tokens[:10]), Stored(tokens))
    assert drafted(drafter, tokens[10:12])
    assert drafted(drafter, [*tokens[10:12], 7]) == []


@pytest.mark.parametrize("at", [0, 5])
def test_an_answer_that_comes_back_to_an_earlier_one_is_guessed_again(at: int) -> None:
    """After one other token, at the start or later, the earlier answer's words are known."""
    tokens = list(range(1000, 1100))
    drafter = Drafter(pack(tokens[:10]), Stored(tokens))
    output = tokens[10 : 10 + at]
    for token in [7, *tokens[11 + at : 13 + at]]:
        output.append(token)
        found = drafted(drafter, output)
    assert found == tokens[13 + at : 17 + at]


@pytest.mark.parametrize(
    ("said", "guess"),
    [
        ([1, 2, 3, 4, 5, 9, 1, 2], [3, 4, 5, 9]),
        ([1, 2, 3, 7, 2, 3, 8, 1, 2, 3], [7, 2, 3, 8]),  # the longer match wins
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2, 4]),  # the latest of equal ones; a period goes on
        ([5, 5, 5], [5, 5, 5, 5]),
        ([1, 2, 3, 4], []),
        ([4, 1, 5, 1], []),  # one token alike is too little
        ([1], []),
        ([256, 1, 65536, 0, 0, 1], []),  # alike in the bytes of two tokens' middle
    ],
)
def test_the_last_words_are_guessed_to_go_on_as_before(said: list[int], guess: list[int]) -> None:
    """What followed the longest end of the text, when that came last, is guessed."""
    for n_prompt in range(1, len(said) + 1):
        drafter = Drafter(pack(said[:n_prompt]), None)
        assert drafted(drafter, said[n_prompt:]) == guess


@given(st.lists(st.integers(0, 3) | st.integers(0, 2**32 - 1), min_size=1, max_size=40))
def test_a_repeated_guess_follows_words_that_were_said(said: list[int]) -> None:
    """It is what stands after an earlier occurrence of the last two tokens; else there is none."""
    found = drafted(Drafter(pack(said), None), [], 1)
    places = [at for at in range(len(said) - 2) if said[at : at + 2] == said[-2:]]
    assert bool(found) == bool(places)
    assert not found or found[0] in [said[at + 2] for at in places]


def test_trust_follows_what_was_right() -> None:
    """Right drafts raise the chance, wrong ones lower it; it stays a chance."""
    trust = Trust(0.5)
    chances = [trust.chance]
    for n in range(30):
        trust.learn(8, 8, n)
        chances.append(trust.chance)
    assert chances == sorted(chances)
    assert 0.9 < chances[-1] < 1
    for n in range(30):
        trust.learn(8, 1, n)
    assert 0.4 < trust.chance < 0.6


def test_misses_make_pauses_that_grow() -> None:
    """A first draft that is wrong pauses for 2, 4, ... at most 32 tokens; a right one resets it."""
    trust, pauses, n_said = Trust(0.5), [], 0
    for _ in range(7):
        trust.learn(3, 0, n_said)
        begin = n_said
        while trust.is_paused(n_said):
            n_said += 1
        pauses.append(n_said - begin)
    assert pauses == [2, 4, 8, 16, 32, 32, 32]
    trust.learn(3, 1, n_said)
    assert not trust.is_paused(n_said)
    trust.learn(3, 0, n_said)
    assert trust.is_paused(n_said + 1)
    assert not trust.is_paused(n_said + 2)


def seen(costs: StepCosts, n_rows: int, seconds: float) -> None:
    for _ in range(20):
        costs.record(n_rows, seconds)


def test_before_anything_is_seen_rows_cost_little() -> None:
    """A row more is taken to add a small share, so that drafts are tried."""
    costs = StepCosts()
    seen(costs, 1, 0.01)
    assert costs.relative(1, 2) == pytest.approx([1, 1 + ROW_SHARE, 1 + 2 * ROW_SHARE])


def test_costs_follow_what_was_measured() -> None:
    """Seen sizes have their mean, those between lie on a line, and nothing ever falls."""
    costs = StepCosts()
    seen(costs, 1, 0.010)
    seen(costs, 3, 0.0104)
    seen(costs, 4, 0.0102)
    assert costs.relative(1, 3) == pytest.approx([1, 1.02, 1.04, 1.04])


def test_a_large_step_says_nothing_of_small_ones() -> None:
    """A prompt's slow step does not keep two rows from being tried."""
    costs = StepCosts()
    seen(costs, 1, 0.01)
    seen(costs, 128, 10.0)
    assert costs.relative(1, 1)[1] <= 1 + ROW_SHARE + 1e-9


def test_one_slow_step_counts_for_little() -> None:
    """The first step of a size is not counted, and no later one for more than half above."""
    costs = StepCosts()
    seen(costs, 1, 0.01)
    costs.record(2, 5.0)
    seen(costs, 2, 0.01)
    costs.record(2, 5.0)
    assert costs.relative(1, 1)[1] < 1.2


def test_old_costs_are_forgotten() -> None:
    """What was slow is tried again after a while."""
    costs = StepCosts()
    seen(costs, 2, 0.05)
    seen(costs, 1, 0.01)
    assert costs.relative(1, 1)[1] == pytest.approx(5)
    for _ in range(FRESH_STEPS):
        costs.record(1, 0.01)
    assert costs.relative(1, 1)[1] == pytest.approx(1 + ROW_SHARE)
