"""Calls that may come in the middle of a change, and are made when it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prefixcache.types import RequestId


class Cancels:
    """Ends requests: at once, or when the change that is under way has come to an end.

    A generator that the garbage collector closes cancels its request at whatever line the thread
    happens to be.
    """

    def __init__(self, cancel: Callable[[RequestId], None]) -> None:
        """Make it. `cancel` ends one request; it is called between changes only."""
        self._cancel = cancel
        self._due: deque[RequestId] = deque()
        self._is_busy = False

    def __call__(self, request_id: RequestId) -> None:
        """End a request as soon as may be."""
        self._due.append(request_id)
        if not self._is_busy:
            self._catch_up()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put off what comes while the block changes something."""
        self._is_busy = True
        try:
            yield
        finally:
            self._catch_up()

    def pause(self, poll: Callable[[], None]) -> None:
        """Within a held block: make what is due, and let `poll` change what it likes."""
        self._catch_up()
        try:
            poll()
        finally:
            self._is_busy = True

    def _catch_up(self) -> None:
        self._is_busy = True  # for what comes meanwhile
        while self._due:
            self._cancel(self._due.popleft())
        self._is_busy = False
