"""A trace's hit rate by capacity, as points to draw."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from prefixcache.traces.curve import MissRatioCurve, miss_ratio_curve
from prefixcache.traces.optimum import optimum
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.sums import Simulation
from prefixcache.traces.tally import rates_of

_LRU_POINTS = 60
_OPTIMUM_POINTS = 8


@dataclass(frozen=True, slots=True)
class CurvePoints:
    """Hit rates by token. Capacities are in blocks of the trace."""

    lru: Sequence[tuple[int, float]]
    optimum: Sequence[tuple[int, float]]


def curve_points(requests: Sequence[TraceRequest]) -> CurvePoints:
    """Return points of LRU's curve and of the optimum's, up to where more room brings no more.

    Cost: one pass for all of the first, and one for each point of the second.
    """
    curve = miss_ratio_curve(requests)
    most = max(curve.capacities, default=1)
    lru = [(n, _rate(curve.at(n))) for n in _spread(most, _LRU_POINTS)]
    capacities = sorted({*_spread(most, _OPTIMUM_POINTS), *_even_steps(curve, _OPTIMUM_POINTS)})
    best = [(n, _rate(optimum(requests, capacity_blocks=n))) for n in capacities]
    return CurvePoints(lru, best)


def _rate(sums: Simulation) -> float:
    return rates_of(sums).by_token or 0.0


def _even_steps(curve: MissRatioCurve, n_points: int) -> list[int]:
    """Return the capacities at which LRU has each next part of its hits: there the curve bends."""
    capacities = curve.capacities
    wanted = [curve.hit_blocks(None) * step / n_points for step in range(1, n_points + 1)]
    found = [bisect_left(capacities, hits, key=curve.hit_blocks) for hits in wanted]
    return [capacities[at] for at in found if at < len(capacities)]


def _spread(most: int, n_points: int) -> list[int]:
    """Return numbers from 1 to `most`, each about as many times the one before."""
    steps = max(n_points - 1, 1)
    return sorted({round(most ** (step / steps)) for step in range(steps + 1)})
