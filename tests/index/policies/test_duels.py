"""Whether another order than that of last use is measured as right, and only then followed."""

from __future__ import annotations

import pytest

from prefixcache.index.policies.duels import Duellist, Duels


@pytest.mark.parametrize(("gone_blocks", "kept_blocks"), [(3, 9), (9, 3)])
def test_what_is_given_up_and_used_first_proves_the_other_order_right(
    gone_blocks: int, kept_blocks: int
) -> None:
    """By the blocks that both have, and once: that is three, enough for 600 entries."""
    duels, gone, kept = Duels(), Duellist(), Duellist()
    duels.begin(gone, kept, gone_blocks=gone_blocks, kept_blocks=kept_blocks)
    for used in (gone, kept, gone):
        duels.decide(used)
    assert duels.are_won(600)
    assert not duels.are_won(601)


def test_what_is_kept_and_used_first_proves_it_wrong() -> None:
    """As if it had been given up: that would have cost as many blocks."""
    duels = Duels()
    for n_blocks in (2, 1):
        kept = Duellist()
        duels.begin(Duellist(), kept, gone_blocks=2, kept_blocks=n_blocks)
        duels.decide(kept)
    for is_enough in (False, False, False, True):  # after a lead of -2, -1, 0 and 1
        gone = Duellist()
        duels.begin(gone, Duellist(), gone_blocks=1, kept_blocks=1)
        duels.decide(gone)
        assert duels.are_won(1) == is_enough


def test_one_prefix_is_set_against_no_more_blocks_than_it_has() -> None:
    """It could be given up only once."""
    duels, kept = Duels(), Duellist()
    others = [Duellist() for _ in range(5)]
    for other in others:
        duels.begin(other, kept, gone_blocks=1, kept_blocks=2)
    for other in others:
        duels.decide(other)
    assert duels.are_won(400)
    assert not duels.are_won(401)


@pytest.mark.parametrize("n_parts", [1, 4])
def test_a_leaf_that_goes_bit_by_bit_counts_once(n_parts: int) -> None:
    """As long as it meets the same one."""
    duels, gone, kept = Duels(), Duellist(), Duellist()
    for part in range(n_parts):
        duels.begin(gone, kept, gone_blocks=4 - part, kept_blocks=100)
    duels.decide(gone)
    assert duels.are_won(800)
    assert not duels.are_won(801)
