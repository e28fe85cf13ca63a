"""Several caches, and how requests are spread over them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from zlib import crc32

from prefixcache.errors import ConfigError
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.tally import hit_tokens
from prefixcache.traces.whatif.caches import TraceCache

_MAX_OVERLOAD = 1.25  # times the mean load: beyond it a replica is passed over


@dataclass(slots=True)
class Replica:
    """A cache and what it was given."""

    cache: TraceCache
    requests: int = 0
    load_tokens: int = 0  # computed so far: input that was not cached, and output

    def serve(self, request: TraceRequest) -> int:
        """Run a request and count what it costs."""
        hit_blocks = self.cache.serve(request)
        self.requests += 1
        n_computed = request.input_tokens - hit_tokens(request, hit_blocks)
        self.load_tokens += n_computed + request.output_tokens
        return hit_blocks


Router = Callable[[Sequence[Replica], TraceRequest, random.Random], Replica]


def _at_random(replicas: Sequence[Replica], _: TraceRequest, rng: random.Random) -> Replica:
    return rng.choice(replicas)


def _least_loaded(replicas: Sequence[Replica], _: TraceRequest, __: random.Random) -> Replica:
    return min(replicas, key=lambda replica: replica.load_tokens)


def _by_session(replicas: Sequence[Replica], request: TraceRequest, rng: random.Random) -> Replica:
    if request.conversation is None:
        return _least_loaded(replicas, request, rng)
    return replicas[crc32(request.conversation.encode()) % len(replicas)]


def _by_prefix(replicas: Sequence[Replica], request: TraceRequest, _: random.Random) -> Replica:
    mean = sum(replica.load_tokens for replica in replicas) / len(replicas)
    most = _MAX_OVERLOAD * mean + request.input_tokens
    able = [replica for replica in replicas if replica.load_tokens <= most]
    return max(able, key=lambda replica: (replica.cache.n_cached(request), -replica.load_tokens))


ROUTINGS: Mapping[str, Router] = MappingProxyType(
    {
        "random": _at_random,
        "least-load": _least_loaded,  # the one that has computed the fewest tokens so far
        "prefix-aware": _by_prefix,  # the longest match among those that are not overloaded
        "session": _by_session,  # a conversation stays; least load for requests without one
    }
)


class Replicas:
    """Equal caches behind a router, each with a capacity of its own.

    Raises:
        ConfigError: there is no replica, or no such routing.
    """

    def __init__(self, caches: Sequence[TraceCache], routing: str, *, rng: random.Random) -> None:
        if not caches:
            raise ConfigError("replicas", 0, "must be at least 1")
        if routing not in ROUTINGS:
            raise ConfigError("routing", routing, f"must be one of {', '.join(ROUTINGS)}")
        self._replicas = [Replica(cache) for cache in caches]
        self._routing = routing
        self._rng = rng

    def serve(self, request: TraceRequest) -> int:
        """Run a request on one of them; return how many leading blocks it found there."""
        return ROUTINGS[self._routing](self._replicas, request, self._rng).serve(request)

    def extras(self) -> dict[str, object]:
        """Return what each replica was given, and how far the fullest is above the mean."""
        loads = [replica.load_tokens for replica in self._replicas]
        mean = sum(loads) / len(loads)
        hosts = [replica.cache.extras() for replica in self._replicas]
        return {
            "routing": self._routing,
            "replicas": [
                {"requests": replica.requests, "computed_tokens": replica.load_tokens, **host}
                for replica, host in zip(self._replicas, hosts, strict=True)
            ],
            "most_to_mean_load": max(loads) / mean if mean else None,
        }
