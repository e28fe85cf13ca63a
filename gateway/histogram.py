"""A histogram that costs little to fill: it is filled once for every token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class LoopHistogram(Collector):
    """Counts values by size, as prometheus_client's own does, but for one thread: no locks."""

    def __init__(self, name: str, help: str, *, buckets: Sequence[float]) -> None:
        """Make it, empty.

        Args:
            name, help: as Prometheus shows it.
            buckets: their upper bounds, which belong to them, rising; one without end is added.
        """
        self._name = name
        self._help = help
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        bounds = [*map(_shown, self._bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family = HistogramMetricFamily(self._name, self._help)
        family.add_metric([], buckets, self._sum)
        yield family


def _shown(bound: float) -> str:
    return repr(float(bound))
