"""What a measurement of the index finds: one row a workload."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

Figures = Mapping[str, float]

_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one workload, by name. A name says its unit.

    Times are thread CPU time. `us` is a millionth of a second, for one request where nothing else
    is said; a mean is over all requests of a run, as a median is.
    """

    workload: str
    figures: Figures


def medians(rows: Sequence[Row]) -> Row:
    """Return the median of each figure over runs of the same workload."""
    first = rows[0]
    return Row(
        first.workload,
        {name: _rounded([row.figures[name] for row in rows]) for name in first.figures},
    )


def as_text(row: Row) -> str:
    """Return a row for a terminal: a line for each figure, in the same columns for every row."""
    return "\n".join(
        f"{row.workload:<8}{name:<22}{value:>14,}" for name, value in row.figures.items()
    )


def as_data(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return the rows ready for JSON."""
    return [asdict(row) for row in rows]


def _rounded(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return int(middle) if middle == int(middle) else round(middle, _DIGITS)
