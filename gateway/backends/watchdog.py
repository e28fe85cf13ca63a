"""Notices a worker that lives and does nothing, or nothing for those who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from prefixcache import wire

_CHECKS = 4  # in a row without a word, a share of the time allowed between them


class Watchdog:
    """Judges one worker by what it says while it serves.

    A check counts against the worker only if the gateway itself was awake for it: a machine that
    slept, or an event loop that was held up, gives it time to be heard first.
    """

    def __init__(
        self,
        *,
        silence_seconds: float,
        step_seconds: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Begin.

        Args:
            silence_seconds: without a message of any kind after which a worker is held to hang; or
                with steps in which nobody ever runs though somebody waits.
            step_seconds: after which a single step is.
        """
        self._silence_seconds = silence_seconds
        self._step_seconds = step_seconds
        self._sleep = sleep
        self._has_heard = True
        self._in_step_seconds = 0.0
        self._has_progress = False  # a step since the last check left nobody waiting for nothing
        self._n_waiting: int | None = None  # in steps without anybody who runs; None: no such step

    def heard(self, message: wire.ToGateway) -> None:
        """Take note of a message."""
        self._has_heard = True
        self._in_step_seconds = message.step_seconds if isinstance(message, wire.Heartbeat) else 0.0
        if isinstance(message, wire.Step):
            stats = message.stats
            is_stalled = stats.waiting > 0 and not (stats.running or self._has_progress)
            self._has_progress = self._has_progress or not is_stalled
            self._n_waiting = stats.waiting if is_stalled else None

    async def watch(self) -> str:
        """Return when the worker is held to hang, and why."""
        n_silent = n_stalled = 0
        while True:
            self._has_heard = self._has_progress = False
            self._n_waiting = None
            await self._sleep(self._silence_seconds / _CHECKS)
            n_silent = 0 if self._has_heard else n_silent + 1
            if n_silent >= _CHECKS:
                return f"it has said nothing for {self._silence_seconds:g} seconds"
            n_stalled = n_stalled + 1 if self._n_waiting else 0
            if n_stalled >= _CHECKS:
                return (
                    f"{self._n_waiting} requests wait and for {self._silence_seconds:g} seconds"
                    " none has run"
                )
            if self._in_step_seconds > self._step_seconds:
                return f"a step of its takes more than {self._step_seconds:g} seconds"
