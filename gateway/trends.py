"""What the server did over time: counters turned into intervals, the latest of them kept."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from prefixcache.types import EngineStats


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in some seconds, and how things stood when they were over."""

    end: float  # seconds since the epoch
    prompt_tokens: int  # of the requests that were admitted
    cached_tokens: int
    output_tokens: int
    evicted_blocks: int
    preemptions: int
    first_tokens: int  # answers that were begun
    first_token_median_seconds: float | None  # null: none was
    first_token_p95_seconds: float | None
    running: int
    waiting: int
    waiting_tokens: int
    free_blocks: int
    cached_blocks: int
    held_blocks: int


class Trends:
    """The latest intervals of one server. Used from one event loop."""

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        take_first_tokens: Callable[[], Sequence[float]],
        wall_clock: Callable[[], float],
        *,
        most: int,
    ) -> None:
        """Begin with none.

        Args:
            take_first_tokens: gives the times to first token since its last call.
            most: intervals that are kept; older ones are forgotten.
        """
        self._stats = stats
        self._take_first_tokens = take_first_tokens
        self._wall_clock = wall_clock
        self._before = stats()
        self._intervals: deque[Interval] = deque(maxlen=most)

    @property
    def intervals(self) -> list[Interval]:
        """Those that are kept, the oldest first."""
        return list(self._intervals)

    async def sample_every(self, seconds: float) -> None:
        """Sample until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.sample()

    def sample(self) -> None:
        """End an interval now. The next one begins."""
        before, now = self._before, self._stats()
        first_tokens = sorted(self._take_first_tokens())
        self._before = now
        self._intervals.append(
            Interval(
                end=self._wall_clock(),
                prompt_tokens=now.prompt_tokens_total - before.prompt_tokens_total,
                cached_tokens=now.cached_tokens_total - before.cached_tokens_total,
                output_tokens=now.output_tokens_total - before.output_tokens_total,
                evicted_blocks=now.evicted_blocks_total - before.evicted_blocks_total,
                preemptions=now.preemptions_total - before.preemptions_total,
                first_tokens=len(first_tokens),
                first_token_median_seconds=quantile(first_tokens, 0.5),
                first_token_p95_seconds=quantile(first_tokens, 0.95),
                running=now.running,
                waiting=now.waiting,
                waiting_tokens=now.waiting_tokens,
                free_blocks=now.pool.free,
                cached_blocks=now.pool.cached,
                held_blocks=now.pool.held,
            )
        )


def quantile(ordered: Sequence[float], part: float) -> float | None:
    """Return the smallest value that at least `part` of `ordered` do not exceed; None: no value."""
    if not ordered:
        return None
    rank = -(-len(ordered) * part // 1)  # rounded up
    return ordered[max(int(rank), 1) - 1]
