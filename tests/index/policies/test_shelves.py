"""Lists by kind and age, where times do not add up exactly."""

from __future__ import annotations

from itertools import count

from prefixcache.index.entry import Entry
from prefixcache.index.policies.ages import N_AGES, UNTIL_SECONDS, age_of
from prefixcache.index.policies.shelves import Shelves

AGE = 5


def rounded_moment() -> tuple[float, float]:
    """Return a last use, and a moment that ends an age by their sum but not by the difference."""
    until = UNTIL_SECONDS[AGE]
    for n in count(1):
        last_used = 1e6 + n / 7
        now = last_used + until
        if age_of(now - last_used) == AGE:
            return last_used, now
    raise AssertionError


def test_an_age_that_ends_between_two_sums_ends_all_the_same() -> None:
    """An entry at the very end of its age is found now, and is older a moment later."""
    last_used, now = rounded_moment()
    shelves = Shelves(1)
    entry = Entry(1, 1, last_used)
    shelves.put(entry, 0, last_used)
    for moment in (now, now + 1e-3, now + UNTIL_SECONDS[-1] * 2):
        assert shelves.least(moment) is entry
    shelves.rank([[float(age == N_AGES - 1) for age in range(N_AGES)]])
    other = Entry(1, 1, now + UNTIL_SECONDS[-1] * 2)
    shelves.put(other, 0, other.last_used)
    assert (
        shelves.least(other.last_used) is other
    )  # the first one has the last age, which ranks best
