"""Which what-ifs a replay has, and the caches for them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    tiers: Mapping[str, Capacity] = field(default_factory=dict)  # of each replica: host, disk
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
        return self.n_replicas == 1 and not self.tiers and not self.published

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
        options = CacheOptions(
            is_isolated=self.is_isolated,
            published=self.published,
            tier_blocks={name: size.in_blocks(block_tokens) for name, size in self.tiers.items()},
        )
        caches = [TraceCache(policy, capacity_blocks, options) for _ in range(self.n_replicas)]
        if self.n_replicas == 1:
            return caches[0]
        return Replicas(caches, self.routing, rng=random.Random(self.seed))  # noqa: S311 (no secret)
