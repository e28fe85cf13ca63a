"""Plots of a replay. Needs matplotlib, which comes with the extra `plots`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prefixcache.traces.replay import ReplayResult
from prefixcache.traces.series import Series, over_capacity, over_distance, over_time

_INCHES_WIDE, _INCHES_HIGH = 15, 4.2


def save_plots(results: Sequence[ReplayResult], file: Path) -> None:
    """Write an image with three plots a trace: by capacity, over time and by reuse distance.

    The file's ending says which kind: .png, .svg or .pdf.

    Raises:
        OSError: it cannot be written.
        ValueError: there is no such kind.
    """
    figure = Figure(figsize=(_INCHES_WIDE, _INCHES_HIGH * len(results)), layout="constrained")
    axes = figure.subplots(len(results), 3, squeeze=False)
    for result, (by_capacity, by_time, by_distance) in zip(results, axes, strict=True):
        _draw(by_capacity, over_capacity(result))
        by_capacity.set(title=result.trace.name, xlabel="capacity, blocks", xscale="log")
        _draw(by_time, over_time(result))
        by_time.set(title="over time", xlabel="seconds of the trace")
        _draw(by_distance, over_distance(result))
        by_distance.set(title="reuse", xlabel="room that a hit needs, blocks", xscale="log")
        by_capacity.set_ylabel("hit rate by token")
        by_time.set_ylabel("hit rate by token")
        by_distance.set_ylabel("share of all hits")
    figure.savefig(file, dpi=110)


def _draw(axes: Axes, lines: Sequence[Series]) -> None:
    for line in lines:
        x, y = [x for x, _ in line.points], [y for _, y in line.points]
        axes.plot(x, y, "o" if line.is_dots else "-", label=line.name)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    if lines:
        axes.legend(fontsize="small")
