"""Rates: a bucket that fills evenly, and how its numbers are told to clients."""

from __future__ import annotations

import math
from collections.abc import Callable

_SECONDS_PER_MINUTE = 60.0
_ROUNDING = 1e-6  # so much less than an amount is the amount


class TokenBucket:
    """Lets `per_minute` of something pass a minute, and as much at once after a quiet minute.

    What is charged after the fact may bring it below zero; it then lets nothing pass until it
    has filled again, so that the rate is kept over time whatever was estimated before.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._level = float(per_minute)
        self._filled_at = clock()

    @property
    def per_minute(self) -> int:
        """How much passes a minute, and how much it holds."""
        return self._per_minute

    @property
    def remaining(self) -> int:
        """How much would pass now."""
        return max(math.floor(self._fill() + _ROUNDING), 0)

    def seconds_until(self, amount: float) -> float:
        """Return when `amount` would pass; of more than it holds, when it is full."""
        missing = min(amount, self._per_minute) - self._fill()
        return (missing if missing > _ROUNDING else 0.0) * _SECONDS_PER_MINUTE / self._per_minute

    def charge(self, amount: float) -> None:
        """Take `amount` out, however little is in; a negative one is put back."""
        self._level = min(self._fill() - amount, self._per_minute)

    def resize(self, per_minute: int) -> None:
        """Let another amount pass from now on; what was used of the old one stays used."""
        self._level = min(self._fill() + per_minute - self._per_minute, per_minute)
        self._per_minute = per_minute

    def _fill(self) -> float:
        now = self._clock()
        grown = (now - self._filled_at) * self._per_minute / _SECONDS_PER_MINUTE
        self._level = min(self._level + max(grown, 0.0), self._per_minute)
        self._filled_at = now
        return self._level


def duration_text(seconds: float) -> str:
    """Return a duration as OpenAI's headers have it: 0s, 12ms, 1s, 1.5s, 6m0s, 1h2m3s."""
    milliseconds = math.ceil(round(seconds * 1000, 6))
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    whole_minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(whole_minutes, 60)
    last = f"{milliseconds / 1000:g}s"
    if hours:
        return f"{hours}h{minutes}m{last}"
    return f"{minutes}m{last}" if minutes else last
