"""Caches side by side: each is given the same requests, one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from prefixcache.errors import ConfigError
from prefixcache.index.policies import EvictionPolicy
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.running import RunningTimes
from prefixcache.traces.simulate import replayed

MakePolicy = Callable[[], EvictionPolicy]


class Lane(Protocol):
    """A cache, or several, that requests are run through."""

    def serve(self, request: TraceRequest) -> int:
        """Run a request; return how many of its leading blocks were cached when it came."""

    def extras(self) -> dict[str, object]:
        """Return what was counted beside hits, ready for JSON."""


class IndexLane:
    """One cache: the real index.

    Args:
        running: makes requests overlap; None: each is over before the next one begins.

    Raises:
        ConfigError: the capacity is below 1.
    """

    def __init__(
        self,
        policy: MakePolicy,
        capacity_blocks: int | None,
        running: RunningTimes | None = None,
    ) -> None:
        self._waiting: deque[TraceRequest] = deque()
        self._running = running
        self._n_served = self._n_unknown = 0
        self._hits = replayed(
            self._arriving(),
            policy=policy,
            capacity_blocks=capacity_blocks,
            running_seconds=None if running is None else running.of,
        )

    def serve(self, request: TraceRequest) -> int:
        """Run a request; return how many of its leading blocks were cached when it came."""
        self._waiting.append(request)
        self._n_served += 1
        if self._running is not None and not self._running.is_known(request):
            self._n_unknown += 1
        _, hit_blocks = next(self._hits)
        return hit_blocks

    def extras(self) -> dict[str, object]:
        """Return how long requests ran, if they overlapped.

        Raises:
            ConfigError: that was to be read from the trace, which tells it of no request.
        """
        if self._running is None:
            return {}
        if self._n_unknown and self._n_unknown == self._n_served:
            reason = "the trace tells of no request how long it ran; give seconds"
            raise ConfigError("running_seconds", self._running.shown, reason)
        return {
            "running_seconds": self._running.shown,
            "requests_without_duration": self._n_unknown,
        }

    def _arriving(self) -> Iterator[TraceRequest]:
        while True:
            yield self._waiting.popleft()
