"""Caches side by side: each is given the same requests, one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from prefixcache.index.policies import EvictionPolicy
from prefixcache.traces.records import TraceRequest
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

    Raises:
        ConfigError: the capacity is below 1.
    """

    def __init__(self, policy: MakePolicy, capacity_blocks: int | None) -> None:
        self._waiting: deque[TraceRequest] = deque()
        self._hits = replayed(self._arriving(), policy=policy, capacity_blocks=capacity_blocks)

    def serve(self, request: TraceRequest) -> int:
        """Run a request; return how many of its leading blocks were cached when it came."""
        self._waiting.append(request)
        _, hit_blocks = next(self._hits)
        return hit_blocks

    def extras(self) -> dict[str, object]:
        """Return nothing: there are hits alone."""
        return {}

    def _arriving(self) -> Iterator[TraceRequest]:
        while True:
            yield self._waiting.popleft()
