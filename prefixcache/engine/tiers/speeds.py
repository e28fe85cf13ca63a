"""Whether loading KV is faster than computing it again: by what was measured, not by a guess."""

from __future__ import annotations

from collections.abc import Callable

from prefixcache.config import LoadingName
from prefixcache.engine.budget import StepBudget
from prefixcache.engine.costs import moved

SMALL_BYTES = 64 * 2**10  # a transfer of no more says how long any takes, not how long a byte does
FRESH_SECONDS = 60.0  # what looks too slow is tried again after so long, for it may have changed


class TransferSpeed:
    """Moving averages of how long transfers take: a latency, and seconds a byte."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with nothing measured. `clock`: seconds, never falling."""
        self._clock = clock
        self._latency: float | None = None
        self._a_byte: float | None = None
        self._measured_at: float | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether the last measurement is young enough to go by."""
        return self._measured_at is not None and self._clock() - self._measured_at < FRESH_SECONDS

    def record(self, n_bytes: int, seconds: float) -> None:
        """Learn from a transfer."""
        self._measured_at = self._clock()
        if n_bytes <= SMALL_BYTES:
            self._latency = moved(self._latency, seconds)
            return
        spent = max(seconds - (self._latency or 0.0), seconds / 10)
        self._a_byte = moved(self._a_byte, spent / n_bytes)

    def seconds_for(self, n_bytes: int) -> float | None:
        """Return about how long so many bytes take; None: nothing like it was measured."""
        if n_bytes <= SMALL_BYTES and self._latency is not None:
            return self._latency
        if self._a_byte is None:
            return None
        return (self._latency or 0.0) + n_bytes * self._a_byte


class Worth:
    """Decides what is loaded, as the setting says or by measurements."""

    def __init__(self, setting: LoadingName, budget: StepBudget, *, bytes_per_token: int) -> None:
        """Make it. `budget` knows how fast prompts are computed."""
        self._setting = setting
        self._budget = budget
        self._bytes_per_token = bytes_per_token

    def is_worth(self, speed: TransferSpeed, n_tokens: int) -> bool:
        """Whether loading so many tokens is faster than computing them.

        While that is not known it is taken to be so, and then measured.
        """
        if self._setting != "auto":
            return self._setting == "always"
        loading = self.seconds_to_load(speed, n_tokens)
        computing = self.seconds_to_compute(n_tokens)
        if loading is None or computing is None or not speed.is_fresh:
            return True
        return loading < computing

    def seconds_to_load(self, speed: TransferSpeed, n_tokens: int) -> float | None:
        """Return about how long that takes; None: not known."""
        return speed.seconds_for(n_tokens * self._bytes_per_token)

    def seconds_to_compute(self, n_tokens: int) -> float | None:
        """Return about how long that takes; None: not known."""
        a_second = self._budget.tokens_per_second
        return None if a_second is None else n_tokens / a_second
