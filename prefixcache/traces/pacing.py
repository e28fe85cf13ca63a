"""A trace's clock made faster, and its long silences short."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from prefixcache.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How a trace's time passes.

    A gap longer than `max_gap_seconds` of the trace counts as that long; then all are divided
    by `speed`: with a speed of 10 and gaps of at most 5 s, ten minutes become half a second.
    """

    speed: float = 1.0
    max_gap_seconds: float | None = None  # None: gaps are as long as they are

    def __post_init__(self) -> None:
        if not (self.speed > 0 and isfinite(self.speed)):
            raise ConfigError("speed", self.speed, "must be a number above 0")
        if self.max_gap_seconds is not None and not self.max_gap_seconds > 0:
            raise ConfigError("max_gap_seconds", self.max_gap_seconds, "must be above 0")


class PacedClock:
    """Turns arrivals, as a trace has them, into seconds from the first one."""

    def __init__(self, pacing: Pacing) -> None:
        self._speed = pacing.speed
        self._max_gap = inf if pacing.max_gap_seconds is None else pacing.max_gap_seconds
        self._first: float | None = None
        self._latest = 0.0
        self._cut = 0.0  # seconds of the trace that were left out so far

    def seconds(self, timestamp: float) -> float:
        """Return when a request arrives; one before its predecessor makes no gap."""
        if self._first is None:
            self._first = self._latest = timestamp
        gap = timestamp - self._latest
        if gap > 0:
            self._latest = timestamp
            if gap > self._max_gap:
                self._cut += gap - self._max_gap
        return (timestamp - self._first - self._cut) / self._speed
