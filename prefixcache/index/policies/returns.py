"""How likely what was used comes back, by kind and age, learned from what came back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prefixcache.index.policies.ages import LENGTH_SECONDS, N_AGES, age_of

_PRIOR_RATE = 0.03  # of returns in a bin, while little is known: so the longest unused goes first
_PRIOR_WEIGHT = 2.0  # in observations
_GROUP_WEIGHT = 12.0  # of what is known of a group, for each kind in it; and of all, for a group

_FADED_SHARE = 0.97  # of what was counted, that stays: what comes back changes with the hour
_MOST_WEIGHT = 1e9  # beyond it all counts are divided by it

Counts = tuple[Sequence[float], Sequence[float]]  # by age: that returned, and that reached it
Rates = list[float]  # by age: the share that returns in that bin of what has not until then


class Returns:
    """Counts how long things stayed unused, and tells what keeping them is worth.

    Kinds come in groups. A kind of which little is known is taken to be like its group, and a
    group like all.

    Args:
        groups: kinds, numbered from 0 on.
    """

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        self._groups = groups
        n_kinds = sum(map(len, groups))
        self._returned = [[0.0] * N_AGES for _ in range(n_kinds)]
        self._lost = [[0.0] * N_AGES for _ in range(n_kinds)]  # from sight, not known to return
        self._weight = 1.0  # of one that is counted now

    def count(self, kind: int, seconds: float, *, returned: bool) -> None:
        """Count one that was unused for `seconds`, then returned or was lost from sight."""
        counts = self._returned if returned else self._lost
        counts[kind][age_of(seconds)] += self._weight

    def fade(self) -> None:
        """Let all that was counted so far weigh a little less: what comes weighs more."""
        self._weight /= _FADED_SHARE
        if self._weight > _MOST_WEIGHT:
            for counts in (*self._returned, *self._lost):
                counts[:] = [n / self._weight for n in counts]
            self._weight = 1.0

    def worths(self, waiting: Iterable[tuple[int, float]]) -> list[list[float]]:
        """Return what a block of each kind is worth at each age: hits per second of its room.

        Args:
            waiting: kind and age in seconds of those that may still return.

        Cost: what is waiting, and a moment for each kind.
        """
        unknown = [counts[:] for counts in self._lost]
        for kind, seconds in waiting:
            unknown[kind][age_of(seconds)] += self._weight
        known = [
            (returned, _seen(returned, lost)) if any(returned) or any(lost) else None
            for returned, lost in zip(self._returned, unknown, strict=True)
        ]
        by_group = [_sum(known[kind] for kind in group) for group in self._groups]
        everything = self._rates(_sum(by_group), [_PRIOR_RATE] * N_AGES, _PRIOR_WEIGHT)
        worths: list[list[float]] = [[] for _ in known]
        for group, sums in zip(self._groups, by_group, strict=True):
            typical = self._rates(sums, everything, _GROUP_WEIGHT)
            usual = worth_by_age(typical)
            for kind in group:
                counts = known[kind]
                if counts is None:
                    worths[kind] = usual
                else:
                    worths[kind] = worth_by_age(self._rates(counts, typical, _GROUP_WEIGHT))
        return worths

    def _rates(self, counts: Counts, usual: Rates, weight: float) -> Rates:
        """Return the rates of what was counted, which are `usual` where that is little."""
        weight *= self._weight
        return [
            (n_returned + weight * rate) / (n_seen + weight)
            for n_returned, n_seen, rate in zip(*counts, usual, strict=True)
        ]


def _sum(several: Iterable[Counts | None]) -> Counts:
    known = [counts for counts in several if counts is not None]
    if not known:
        return [0.0] * N_AGES, [0.0] * N_AGES
    returned, seen = zip(*known, strict=True)
    return [*map(sum, zip(*returned, strict=True))], [*map(sum, zip(*seen, strict=True))]


def _seen(returned: Sequence[float], unknown: Sequence[float]) -> list[float]:
    """Return how many reached each age; those lost in a bin are half there."""
    seen, total = [0.0] * N_AGES, 0.0
    for age in range(N_AGES - 1, -1, -1):
        total += returned[age] + unknown[age]
        seen[age] = total - unknown[age] / 2
    return seen


def worth_by_age(rates: Rates) -> list[float]:
    """Return, for each age, the most returns per second that keeping from then on can bring.

    The best moment to give up is where that share of returns and seconds is greatest. From the
    last bin backwards, a bin is put together with those after it while they bring more.

    Source: Gittins: Bandit processes and dynamic allocation indices (1979).
    """
    worths = [0.0] * N_AGES
    stretches: list[tuple[float, float, float]] = []  # returns, seconds, share that is left
    for age in range(N_AGES - 1, -1, -1):
        returns = rates[age]
        seconds, left = LENGTH_SECONDS[age] * (1 - returns / 2), 1 - returns
        while stretches and stretches[-1][0] * seconds > returns * stretches[-1][1]:
            more_returns, more_seconds, more_left = stretches.pop()
            returns += left * more_returns
            seconds += left * more_seconds
            left *= more_left
        stretches.append((returns, seconds, left))
        worths[age] = returns / seconds
    return worths
