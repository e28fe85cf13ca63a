"""Ages in bins, each a quarter wider than the one before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

N_AGES = 46  # bins
_FIRST_SECONDS = 1.0
_BINS_PER_DOUBLING = 3

UNTIL_SECONDS: Sequence[float] = tuple(  # where each bin ends; the last one never does
    _FIRST_SECONDS * 2 ** (index / _BINS_PER_DOUBLING) for index in range(N_AGES - 1)
)
LENGTH_SECONDS: Sequence[float] = (  # the last one as if it went on like the others
    UNTIL_SECONDS[0],
    *(after - before for before, after in pairwise(UNTIL_SECONDS)),
    UNTIL_SECONDS[-1],
)


def age_of(seconds: float) -> int:
    """Return the bin of an age."""
    return bisect_right(UNTIL_SECONDS, seconds)
