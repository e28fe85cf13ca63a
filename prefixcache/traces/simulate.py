"""A trace on the real index: how much of each request is cached when it arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prefixcache.errors import ConfigError
from prefixcache.index import TOKEN_BYTES, Namespace, PrefixCache
from prefixcache.index.policies import EvictionPolicy
from prefixcache.traces.blocks import BlockTokens
from prefixcache.traces.records import TraceRequest

_NAMESPACE = Namespace()


@dataclass(frozen=True, slots=True)
class Simulation:
    """Sums over the requests of a trace. What is hit was cached when its request arrived."""

    requests: int
    blocks: int
    hit_blocks: int
    tokens: int
    hit_tokens: int
    attention_pairs: int  # (token, token that it attends to), itself included
    hit_attention_pairs: int  # those that needed no computing


class TraceClock:
    """Seconds of the trace, for a cache to read. Never goes back."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        """Return the time of the last request."""
        return self._now

    def advance(self, now: float) -> None:
        """Go on to `now`, if it lies ahead."""
        self._now = max(self._now, now)


def simulate(
    requests: Sequence[TraceRequest],
    *,
    policy: Callable[[], EvictionPolicy],
    capacity_blocks: int | None,
) -> Simulation:
    """Run requests through a cache, one after another, each over before the next one begins.

    Of a request longer than the cache, the first `capacity_blocks` blocks are stored.

    Args:
        policy: makes the policy that chooses what is given up.
        capacity_blocks: None: nothing is ever given up.

    Raises:
        ConfigError: the capacity is below 1.

    Cost: about a millisecond per ten requests, whatever the capacity.
    """
    if capacity_blocks is None:
        capacity_blocks = max(sum(len(request.hash_ids) for request in requests), 1)
    if capacity_blocks < 1:
        raise ConfigError("capacity_blocks", capacity_blocks, "must be at least 1")
    clock, tokens, hits = TraceClock(), BlockTokens(), list[int]()
    cache = PrefixCache(
        pool_blocks=[capacity_blocks + 1],  # one for the token after a prompt's last block
        block_size_tokens=1,
        growth_blocks=0,
        token_exact_reuse=False,
        policy=policy,
        clock=clock,
    )
    for request in requests:
        clock.advance(request.timestamp_seconds)
        cache.expire()
        prompt = tokens.prompt(request.hash_ids[:capacity_blocks])
        lease = cache.acquire(_NAMESPACE, prompt)
        hits.append(lease.cached_tokens)
        cache.commit(lease, prompt[:-TOKEN_BYTES])
        cache.release(lease)
    return _summed(requests, hits)


def _summed(requests: Sequence[TraceRequest], hit_blocks: Sequence[int]) -> Simulation:
    hit_tokens = [
        min(n_blocks * request.block_tokens, request.input_tokens)
        for request, n_blocks in zip(requests, hit_blocks, strict=True)
    ]
    return Simulation(
        requests=len(requests),
        blocks=sum(len(request.hash_ids) for request in requests),
        hit_blocks=sum(hit_blocks),
        tokens=sum(request.input_tokens for request in requests),
        hit_tokens=sum(hit_tokens),
        attention_pairs=sum(_pairs(request.input_tokens) for request in requests),
        hit_attention_pairs=sum(_pairs(n_tokens) for n_tokens in hit_tokens),
    )


def _pairs(n_tokens: int) -> int:
    return n_tokens * (n_tokens + 1) // 2
