"""What plots of a replay show: lines of points by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prefixcache.traces.replay import ReplayResult
from prefixcache.traces.runs import ReplayRow

_MAX_LINES = 12


class Series(NamedTuple):
    """A line, or dots, of a plot."""

    name: str
    points: Sequence[tuple[float, float]]
    is_dots: bool = False


def over_capacity(result: ReplayResult) -> list[Series]:
    """Return hit rates by capacity in the trace's own blocks: LRU, the optimum, and what was run.

    What was run without a limit has no place in such a plot.
    """
    lines = []
    if result.curve is not None:
        lines += [Series("lru, all", result.curve.lru), Series("optimum", result.curve.optimum)]
    points: dict[str, list[tuple[float, float]]] = {}
    for row in result.rows:
        if row.capacity_blocks is not None:
            n_own = row.capacity_blocks * row.block_tokens / result.block_tokens
            name = _policy_name(row, result)
            points.setdefault(name, []).append((n_own, row.counted.rates.by_token or 0.0))
    return lines + [Series(name, at, is_dots=True) for name, at in points.items()]


def over_time(result: ReplayResult) -> list[Series]:
    """Return each cache's hit rate by time."""
    lines = []
    for row in result.rows:
        if row.periods:
            limit = "unlimited" if row.capacity_blocks is None else f"{row.capacity_blocks:,}"
            points = [
                (period.start_seconds, period.hit_tokens / period.tokens)
                for period in row.periods
                if period.tokens
            ]
            lines.append(Series(f"{_policy_name(row, result)}, {limit}", points))
    return lines[:_MAX_LINES]


def over_distance(result: ReplayResult) -> list[Series]:
    """Return the share of all hits by the room that they need."""
    why = result.why
    if why is None or not why.hit_blocks:
        return []
    return [Series("all hits", [(float(n), hits / why.hit_blocks) for n, hits in why.distances])]


def _policy_name(row: ReplayRow, result: ReplayResult) -> str:
    if row.block_tokens == result.block_tokens:
        return row.policy
    return f"{row.policy}, blocks of {row.block_tokens}"
