"""What a step costs by how many rows it has, learnt from the steps that were made."""

from __future__ import annotations

from bisect import bisect_left, insort

ROW_SHARE = 0.04  # what a row more is taken to add to a step, until some were seen
FRESH_STEPS = 512  # an older measurement counts no more, so that what once was slow is tried again
_NEWEST = 0.25  # the weight of the newest measurement
_MOST_RISE = 1.5  # of one measurement above the mean, so that a hiccup counts for little
_MOST_ROWS = 512  # larger steps are prompts; nothing is asked about them


def moved(mean: float | None, value: float) -> float:
    """Return a mean that has a new measurement in it; `mean`: None: it is the first."""
    return value if mean is None else mean + _NEWEST * (value - mean)


class StepCosts:
    """Seconds of a step by its rows: a mean for each number of rows, and lines in between.

    The first step of a size is not counted: it makes kernels and buffers that later ones find.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._made: dict[int, int] = {}  # when each was measured last, in steps
        self._rows: list[int] = []  # the keys of `_seconds`, in order
        self._n_steps = 0

    def record(self, n_rows: int, seconds: float) -> None:
        """Learn from a step. Cost: O(log n), at most 512 numbers are kept."""
        if not 0 < n_rows <= _MOST_ROWS or seconds <= 0:
            return
        self._n_steps += 1
        is_first = n_rows not in self._made
        self._made[n_rows] = self._n_steps
        if is_first and n_rows > 1:
            return
        mean = self._seconds.get(n_rows)
        if mean is None:
            insort(self._rows, n_rows)
            self._seconds[n_rows] = seconds
        else:
            self._seconds[n_rows] = moved(mean, min(seconds, _MOST_RISE * mean))

    def relative(self, n_rows: int, n_more: int) -> list[float]:
        """Return what steps of 0 to `n_more` rows more than `n_rows` cost, as shares of the first.

        Never below 1, never falling. Cost: O(n_more), and the sizes that were seen.
        """
        known = self._fresh()
        base = self._at(known, n_rows)
        shares: list[float] = []
        highest = 1.0
        for rows in range(n_rows, n_rows + n_more + 1):
            highest = max(highest, self._at(known, rows) / base)
            shares.append(highest)
        return shares

    def _fresh(self) -> list[int]:
        oldest = self._n_steps - FRESH_STEPS
        return [rows for rows in self._rows if self._made[rows] > oldest]

    def _at(self, known: list[int], n_rows: int) -> float:
        """Return seconds, or any number in proportion where nothing was seen at all."""
        if not known:
            return 1 + ROW_SHARE * n_rows
        at = bisect_left(known, n_rows)
        if at == len(known):
            last = known[-1]
            return self._seconds[last] * (1 + ROW_SHARE * (n_rows - last))
        above = self._seconds[known[at]]
        if known[at] == n_rows:
            return above
        if not at:
            return above / (1 + ROW_SHARE * (known[0] - n_rows))
        left = known[at - 1]
        below = self._seconds[left]
        line = below + (above - below) * (n_rows - left) / (known[at] - left)
        # Costs bend upwards: a line to a large step would keep small ones from being tried.
        return min(line, below * (1 + ROW_SHARE * (n_rows - left)))
