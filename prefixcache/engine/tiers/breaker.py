"""Leaving a tier alone after it failed, and trying it again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 300.0
HANG_SECONDS = 10.0  # a call that takes so long counts as a failure while it lasts


class Breaker:
    """Knows whether a tier is to be used now. Its calls may come from two threads.

    A failure closes it off for some seconds, twice as long each time, up to a limit; the first
    success after that opens it again. One warning is logged when it is left out, not for each
    failure, and one line when it is back.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Make it. `clock`: seconds, never falling."""
        self._name = name
        self._clock = clock
        self._out_until = 0.0
        self._pause = FIRST_PAUSE_SECONDS
        self._began: float | None = None  # the call that is under way
        self._is_warned = False
        self.failures = 0

    @property
    def is_out(self) -> bool:
        """Whether the tier is to be left alone now: it has failed, or hangs."""
        now, began = self._clock(), self._began
        if began is not None and now - began > HANG_SECONDS:
            self._warn(f"a call has taken more than {HANG_SECONDS:.0f} s")
            return True
        return now < self._out_until

    @property
    def seconds_out(self) -> float:
        """How long it is to be left alone."""
        return max(self._out_until - self._clock(), 0.0)

    def begin(self) -> None:
        """Note that a call begins."""
        self._began = self._clock()

    def succeed(self) -> None:
        """Note that the call has ended well."""
        began, self._began = self._began, None
        if began is not None and self._clock() - began > HANG_SECONDS:
            self._leave_out()
            return
        self._pause = FIRST_PAUSE_SECONDS
        if self._is_warned:
            self._is_warned = False
            logger.warning("the %s tier is used again", self._name)

    def fail(self, error: Exception) -> None:
        """Note that the call has failed."""
        self._began = None
        self._warn(str(error) or type(error).__name__)
        self._leave_out()

    def _leave_out(self) -> None:
        self.failures += 1
        self._out_until = self._clock() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    def _warn(self, reason: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            logger.warning(
                "the %s tier is left out, requests go on without it and it is tried again: %s",
                self._name,
                reason,
            )
