"""Which what-ifs a replay has, and the caches for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from prefixcache.errors import ConfigError
from prefixcache.traces.capacity import Capacity
from prefixcache.traces.lanes import IndexLane, Lane, MakePolicy
from prefixcache.traces.running import RunningTimes
from prefixcache.traces.whatif.caches import CacheOptions, TraceCache
from prefixcache.traces.whatif.replicas import ROUTINGS, Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What is different from one cache that everybody shares."""

    is_isolated: bool = True  # tenants, where the trace has them, share what is published alone
    published: Sequence[tuple[int, ...]] = ()  # hash ids of prompts
    host_capacity: Capacity | None = None  # of a second tier, per replica; None: there is none
    n_replicas: int = 1  # each with the whole capacity
    routing: str = "prefix-aware"
    seed: int = 0  # for random routing
    running: RunningTimes | None = None  # None: requests run one after another

    def __post_init__(self) -> None:
        if self.n_replicas < 1:
            raise ConfigError("replicas", self.n_replicas, "must be at least 1")
        if self.routing not in ROUTINGS:
            raise ConfigError("routing", self.routing, f"must be one of {', '.join(ROUTINGS)}")
        if self.running is not None and not self.is_one_cache:
            reason = "goes with one cache with one tier and nothing published"
            raise ConfigError("running_seconds", self.running.shown, reason)

    @property
    def is_one_cache(self) -> bool:
        """Whether there is one cache with one tier, filled by the requests alone."""
        return self.n_replicas == 1 and self.host_capacity is None and not self.published

    def lane(
        self,
        policy: MakePolicy,
        capacity_blocks: int | None,
        block_tokens: int,
        *,
        has_tenants: bool,
    ) -> Lane:
        """Return the cache, or caches, to run requests through.

        Raises:
            ConfigError: a capacity is too small, or requests overlap and tenants are isolated.
        """
        if self.is_one_cache and not (has_tenants and self.is_isolated):
            return IndexLane(policy, capacity_blocks, self.running)
        if self.running is not None:
            reason = "goes with tenants that share: say --tenants shared"
            raise ConfigError("running_seconds", self.running.shown, reason)
        host = None if self.host_capacity is None else self.host_capacity.in_blocks(block_tokens)
        options = CacheOptions(
            is_isolated=self.is_isolated, published=self.published, host_capacity_blocks=host
        )
        caches = [TraceCache(policy, capacity_blocks, options) for _ in range(self.n_replicas)]
        if self.n_replicas == 1:
            return caches[0]
        return Replicas(caches, self.routing, rng=random.Random(self.seed))  # noqa: S311 (no secret)
