"""Signs of life while a step runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prefixcache.wire import Heartbeat

logger = logging.getLogger(__name__)


class Pulse:
    """Sends, from a thread of its own, that the process lives and how long its step has taken.

    A process that is stopped or that keeps the interpreter to itself falls silent; one whose step
    never ends says so.
    """

    def __init__(
        self,
        send: Callable[[Heartbeat], None],
        *,
        every_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._every_seconds = min(every_seconds, threading.TIMEOUT_MAX)
        self._clock = clock
        self._step_began: float | None = None
        self._is_over = threading.Event()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Send a sign every `every_seconds` while the block lasts."""
        thread = threading.Thread(target=self._beat, daemon=True, name="heartbeat")
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count the block as a step."""
        self._step_began = self._clock()
        try:
            yield
        finally:
            self._step_began = None

    def _beat(self) -> None:
        while not self._is_over.wait(self._every_seconds):
            began = self._step_began
            try:
                self._send(Heartbeat(0.0 if began is None else self._clock() - began))
            except OSError:
                logger.info("no more signs of life: the gateway is gone")
                return
