"""Line charts as SVG text, for pages that must load nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log10

from prefixcache.traces.series import Series

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 40
_COLOURS = ("#1f6fb4", "#d1495b", "#2e8b57", "#8d5fd3", "#c77d0a", "#0f8b8d", "#777777")
_N_TICKS = 5


def line_chart(lines: Sequence[Series], *, x_label: str, is_log: bool = False) -> str:
    """Return a chart of shares from 0 up, with a legend below; "" where there are no points.

    Args:
        is_log: whether the horizontal axis is logarithmic; all its values are above 0 then.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    place = _places(points, is_log)
    marks = [_drawn(line, _COLOURS[i % len(_COLOURS)], place) for i, line in enumerate(lines)]
    legend = " ".join(
        f'<span style="color:{_COLOURS[i % len(_COLOURS)]}">&#9632; {escape(line.name)}</span>'
        for i, line in enumerate(lines)
    )
    axes = _axes(points, place, x_label, is_log)
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(x_label)}">'
        f"{axes}{''.join(marks)}</svg><figcaption>{legend}</figcaption></figure>"
    )


Place = Callable[[float, float], tuple[float, float]]


def _places(points: Sequence[tuple[float, float]], is_log: bool) -> Place:
    """Return what turns values into a place in the picture."""
    scaled = [_scaled(x, is_log) for x, _ in points]
    low, high = min(scaled), max(scaled)
    top = max(1e-9, *(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        share = (_scaled(x, is_log) - low) / (high - low) if high > low else 0.5
        across = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
        return across, _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM)

    return place


def _scaled(x: float, is_log: bool) -> float:
    return log10(x) if is_log else x


def _drawn(line: Series, colour: str, place: Place) -> str:
    places = [place(x, y) for x, y in line.points]
    if line.is_dots:
        return "".join(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in places
        )
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _axes(points: Sequence[tuple[float, float]], place: Place, x_label: str, is_log: bool) -> str:
    xs = [x for x, _ in points]
    top = max(y for _, y in points)
    parts = []
    for x in _ticks(min(xs), max(xs), is_log):
        across, _ = place(x, 0)
        parts.append(_text(across, _HEIGHT - _BOTTOM + 16, f"{x:,.0f}", "middle"))
    for step in range(_N_TICKS):
        share = top * step / (_N_TICKS - 1)
        _, up = place(xs[0], share)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up:.1f}" y2="{up:.1f}" class="grid"/>'
        )
        parts.append(_text(_LEFT - 6, up + 4, f"{share:.3f}", "end"))
    parts.append(_text(_WIDTH / 2, _HEIGHT - 6, x_label, "middle"))
    return "".join(parts)


def _ticks(low: float, high: float, is_log: bool) -> list[float]:
    if is_log:
        powers = range(ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9) + 1)
        return [10.0**power for power in powers]
    return [low + (high - low) * step / (_N_TICKS - 1) for step in range(_N_TICKS)]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
