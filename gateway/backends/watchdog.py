"""Notices a worker that lives and does nothing."""

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
            silence_seconds: without a message of any kind after which a worker is held to hang.
            step_seconds: after which a single step is.
        """
        self._silence_seconds = silence_seconds
        self._step_seconds = step_seconds
        self._sleep = sleep
        self._has_heard = True
        self._in_step_seconds = 0.0

    def heard(self, message: wire.ToGateway) -> None:
        """Take note of a message."""
        self._has_heard = True
        self._in_step_seconds = message.step_seconds if isinstance(message, wire.Heartbeat) else 0.0

    async def watch(self) -> str:
        """Return when the worker is held to hang, and why."""
        n_silent = 0
        while True:
            self._has_heard = False
            await self._sleep(self._silence_seconds / _CHECKS)
            n_silent = 0 if self._has_heard else n_silent + 1
            if n_silent >= _CHECKS:
                return f"it has said nothing for {self._silence_seconds:g} seconds"
            if self._in_step_seconds > self._step_seconds:
                return f"a step of its takes more than {self._step_seconds:g} seconds"
