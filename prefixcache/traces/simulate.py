"""A trace on the real index: how much of each request is cached when it arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from prefixcache.errors import ConfigError, PoolExhaustedError
from prefixcache.index import TOKEN_BYTES, Lease, Namespace, PrefixCache
from prefixcache.index.policies import EvictionPolicy
from prefixcache.traces.blocks import BLOCK_TOKENS, packed_prompt
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.sums import Simulation, Sums

_NAMESPACE = Namespace()
_UNLIMITED_BLOCKS = 2**48  # more than a trace can name in years; a pool takes no memory for them


class TraceClock:
    """Seconds of the trace, for a cache to read. Never goes back."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        """Return the time of the last event."""
        return self._now

    def advance(self, now: float) -> None:
        """Go on to `now`, if it lies ahead."""
        self._now = max(self._now, now)


def simulate(
    requests: Iterable[TraceRequest],
    *,
    policy: Callable[[], EvictionPolicy],
    capacity_blocks: int | None,
    running_seconds: Callable[[TraceRequest], float] | None = None,
) -> Simulation:
    """Run requests, which may be a stream, through a cache, and return the sums.

    Arguments and errors are those of `replayed`.

    Cost: about a millisecond per ten requests, whatever the capacity; memory for as many
    blocks as the capacity, however long the trace.
    """
    sums = Sums()
    hits = replayed(
        requests, policy=policy, capacity_blocks=capacity_blocks, running_seconds=running_seconds
    )
    for request, hit_blocks in hits:
        sums.add(request, hit_blocks)
    return sums.result()


def replayed(
    requests: Iterable[TraceRequest],
    *,
    policy: Callable[[], EvictionPolicy],
    capacity_blocks: int | None,
    running_seconds: Callable[[TraceRequest], float] | None = None,
) -> Iterator[tuple[TraceRequest, int]]:
    """Run requests through the real index; yield each one with its leading blocks that were cached.

    Of a request longer than the cache, the first `capacity_blocks` blocks are stored.

    Without `running_seconds` a request is over before the next one begins. With it requests
    overlap, as in `prefixcache/design/0020-replay-methods.md`:

    - They start in the order of the trace, each as soon as it has arrived, those before it have
      started and its blocks can be had; what was cached then is its hit.
    - What it does not find can be matched by others from its start on.
    - Until it ends it holds the blocks of its prompt, which nothing makes give way, and one more
      for its answer. The cache has one such block more than `capacity_blocks`.

    Args:
        requests: by arrival.
        policy: makes the policy that chooses what is given up.
        capacity_blocks: None: nothing is ever given up for room.
        running_seconds: how long a request runs from its start on: measured or estimated.

    Raises:
        ConfigError: the capacity is below 1, or a request runs for less than 0 seconds.
    """
    if capacity_blocks is None:
        capacity_blocks = _UNLIMITED_BLOCKS
    if capacity_blocks < 1:
        raise ConfigError("capacity_blocks", capacity_blocks, "must be at least 1")
    return _replayed(requests, _Replay(policy, capacity_blocks), running_seconds)


def _replayed(
    requests: Iterable[TraceRequest],
    replay: _Replay,
    running_seconds: Callable[[TraceRequest], float] | None,
) -> Iterator[tuple[TraceRequest, int]]:
    for request in requests:
        lease = replay.start(request)
        hit_blocks = lease.cached_tokens // BLOCK_TOKENS
        replay.end(lease, 0.0 if running_seconds is None else running_seconds(request))
        yield request, hit_blocks


class _Replay:
    """The cache, its clock, and what runs."""

    def __init__(self, policy: Callable[[], EvictionPolicy], capacity_blocks: int) -> None:
        self._capacity_blocks = capacity_blocks
        self._clock = TraceClock()
        self._cache = PrefixCache(
            pool_blocks=[capacity_blocks + 1],  # one for the token after a prompt's last block
            block_size_tokens=BLOCK_TOKENS,
            growth_blocks=0,
            token_exact_reuse=False,
            policy=policy,
            clock=self._clock,
        )
        self._running: list[tuple[float, int, Lease]] = []  # a heap by end and start
        self._n_started = 0

    def start(self, request: TraceRequest) -> Lease:
        """Begin a request once it has arrived and has room, and make its prompt matchable."""
        while self._running and self._running[0][0] <= request.timestamp_seconds:
            self._end_first()
        self._clock.advance(request.timestamp_seconds)
        self._cache.expire()
        prompt = packed_prompt(request.hash_ids[: self._capacity_blocks])
        lease = self._admitted(prompt)
        self._cache.commit(lease, prompt[:-TOKEN_BYTES])
        return lease

    def end(self, lease: Lease, seconds: float) -> None:
        """Have a request that begins now end after `seconds` seconds."""
        if not seconds >= 0:
            raise ConfigError("running_seconds", seconds, "must be at least 0")
        if not seconds:
            self._cache.release(lease)
            return
        self._n_started += 1
        heappush(self._running, (self._clock() + seconds, self._n_started, lease))

    def _admitted(self, prompt: bytes) -> Lease:
        while True:
            try:
                return self._cache.acquire(_NAMESPACE, prompt)
            except PoolExhaustedError:
                self._end_first()

    def _end_first(self) -> None:
        end, _, lease = heappop(self._running)
        self._clock.advance(end)
        self._cache.release(lease)
