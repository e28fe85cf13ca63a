"""Runs of blocks: joining and cutting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prefixcache.index.spans import (
    Runs,
    cut,
    cut_groups,
    exchanged,
    has_all,
    join,
    join_groups,
    n_blocks_in,
)
from prefixcache.types import BlockId, Span


def runs(*pairs: tuple[int, int]) -> Runs:
    return tuple(Span(BlockId(first), n_blocks) for first, n_blocks in pairs)


def ids(some: Runs) -> list[int]:
    return [block for first, n_blocks in some for block in range(first, first + n_blocks)]


RUNS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=5).map(
    lambda pairs: runs(*pairs)
)


def test_spans_that_continue_each_other_become_one() -> None:
    """What is consecutive is one slice of the store."""
    assert join(runs((0, 2)), runs((2, 3), (9, 1)), runs((10, 1))) == runs((0, 5), (9, 2))


def test_spans_apart_or_backwards_stay_apart() -> None:
    """Order is that of the prompt, not that of the ids."""
    assert join(runs((4, 2)), runs((2, 2))) == runs((4, 2), (2, 2))


@given(RUNS, st.integers(0, 25))
def test_a_cut_loses_nothing(some: Runs, at: int) -> None:
    """Head and tail together are the same blocks in the same order."""
    head, tail = cut(some, at)
    assert ids(head) + ids(tail) == ids(some)
    assert n_blocks_in(head) == min(at, n_blocks_in(some))
    assert all(n_blocks > 0 for _, n_blocks in head + tail)


def test_groups_are_cut_and_joined_position_by_position() -> None:
    """Each layer group keeps its own blocks for the same positions."""
    groups = (runs((0, 4)), runs((7, 1), (2, 3)))
    head, tail = cut_groups(groups, 2)
    assert head == (runs((0, 2)), runs((7, 1), (2, 1)))
    assert join_groups(head, tail) == groups


@given(st.permutations(range(12)), st.integers(0, 11), st.integers(0, 11), st.integers(1, 4))
def test_blocks_that_change_places_are_found_where_the_others_were(
    order: list[int], one: int, other: int, n_blocks: int
) -> None:
    """Each of the two takes the other's place in the prompt, and no other block moves."""
    if abs(one - other) < n_blocks:
        return
    before = order[:8]
    places = {one + index: other + index for index in range(n_blocks)}
    places |= {there: here for here, there in places.items()}
    blocks = join(*[runs((block, 1)) for block in before])
    spans = (Span(BlockId(first), n_blocks) for first in (one, other))
    moved = exchanged(blocks, *spans)
    assert ids(moved) == [places.get(block, block) for block in before]
    assert moved == join(moved)


@given(st.permutations(range(10)), st.integers(0, 9), st.integers(1, 4))
def test_blocks_are_among_runs_in_whatever_order(
    order: list[int], first: int, n_blocks: int
) -> None:
    """All of them, or it is not so."""
    some = join(*[runs((block, 1)) for block in order[:6]])
    expected = set(range(first, first + n_blocks)) <= set(order[:6])
    assert has_all(some, Span(BlockId(first), n_blocks)) == expected
