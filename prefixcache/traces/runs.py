"""One cache of a replay, and what is counted of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

from prefixcache.errors import ConfigError
from prefixcache.index.policies import PolicyOptions, make_policy
from prefixcache.traces.capacity import Capacity
from prefixcache.traces.computed import COMPUTED, POLICIES
from prefixcache.traces.prefix_ids import coarser, tenants_apart
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.tally import (
    Counted,
    Period,
    Tally,
    TenantSums,
    TenantTally,
    Timeline,
    rates_of,
)
from prefixcache.traces.whatif import WhatIf


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What a trace is to be run through: each policy at each capacity and block size.

    Policies of the index run request by request, and the trace is never held. Those of `COMPUTED`
    know it whole: they hold it, and are of one cache.
    """

    policies: Sequence[str] = ("lru",)
    capacities: Sequence[Capacity] = (Capacity(),)
    block_tokens: Sequence[int | None] = (None,)  # None: as the trace has it
    options: PolicyOptions = field(default_factory=PolicyOptions)
    warm_up_requests: int = 0  # they fill the caches and are left out of `after_warm_up`
    what_if: WhatIf = field(default_factory=WhatIf)

    def __post_init__(self) -> None:
        for name in self.policies:
            if name not in POLICIES:
                raise ConfigError("policy", name, f"must be one of {', '.join(POLICIES)}")
            if name in COMPUTED and not self.what_if.is_one_cache:
                reason = "is computed for one cache with one tier and nothing published"
                raise ConfigError("policy", name, reason)
            if name in COMPUTED and self.what_if.running is not None:
                reason = "is computed for requests that run one after another"
                raise ConfigError("policy", name, reason)


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One policy at one capacity on one trace."""

    trace: str
    policy: str
    capacity_blocks: int | None  # None: unlimited; of each replica
    block_tokens: int
    counted: Counted
    warm_up_requests: int = 0  # that were left out of `after_warm_up`
    after_warm_up: Counted | None = None  # None: nothing was left out, or it is not known
    periods: Sequence[Period] = ()
    tenants: Mapping[str, TenantSums] = field(default_factory=dict)
    extras: Mapping[str, object] = field(default_factory=dict)  # of what-ifs


class Blocks(NamedTuple):
    """In which blocks a run sees its requests."""

    tokens: int  # of a block
    factor: int  # of the trace's own
    has_partial_ids: bool

    def resized(self, request: TraceRequest) -> TraceRequest:
        """Return the request in these blocks."""
        if self.factor == 1:
            return request
        ids = coarser(request.hash_ids, self.factor, has_partial=self.has_partial_ids)
        return request.with_ids(request.timestamp_seconds, ids, self.tokens)


class Run(Protocol):
    """A cache that is given every request, and then asked what came of it."""

    def add(self, request: TraceRequest) -> None:
        """Run a request."""

    def row(self, trace: str, kept: Sequence[TraceRequest]) -> ReplayRow:
        """Return what came of it; `kept` are all requests, where they were kept."""


class OnlineRun:
    """A policy of the index."""

    def __init__(
        self, plan: ReplayPlan, policy: str, capacity: Capacity, blocks: Blocks, has_tenants: bool
    ) -> None:
        self._plan, self._policy, self._blocks = plan, policy, blocks
        self._capacity_blocks = capacity.in_blocks(blocks.tokens)
        published = [
            coarser(ids, blocks.factor, has_partial=False) for ids in plan.what_if.published
        ]
        what_if = replace(plan.what_if, published=[ids for ids in published if ids])
        maker = partial(make_policy, policy, plan.options)
        self._lane = what_if.lane(
            maker, self._capacity_blocks, blocks.tokens, has_tenants=has_tenants
        )
        self._tally, self._after = Tally(), Tally()
        self._timeline, self._tenants = Timeline(), TenantTally()
        self._n_seen = 0

    def add(self, request: TraceRequest) -> None:
        """Run a request through the cache and count it."""
        request = self._blocks.resized(request)
        hit_blocks = self._lane.serve(request)
        self._tally.add(request, hit_blocks)
        self._timeline.add(request, hit_blocks)
        if request.tenant is not None:
            self._tenants.add(request, hit_blocks)
        self._n_seen += 1
        if self._n_seen > self._plan.warm_up_requests > 0:
            self._after.add(request, hit_blocks)

    def row(self, trace: str, kept: Sequence[TraceRequest]) -> ReplayRow:
        """Return what was counted."""
        n_left_out = min(self._plan.warm_up_requests, self._n_seen)
        return ReplayRow(
            trace,
            self._policy,
            self._capacity_blocks,
            self._blocks.tokens,
            self._tally.counted(),
            n_left_out,
            self._after.counted() if n_left_out else None,
            self._timeline.periods(),
            self._tenants.sums(),
            self._lane.extras(),
        )


class ComputedRun:
    """A policy that knows the whole trace. Isolated tenants have ids of their own for it."""

    def __init__(self, plan: ReplayPlan, policy: str, capacity: Capacity, blocks: Blocks) -> None:
        self._is_isolated = plan.what_if.is_isolated
        self._policy, self._blocks = policy, blocks
        self._capacity_blocks = capacity.in_blocks(blocks.tokens)

    def add(self, request: TraceRequest) -> None:
        """Wait for the others."""

    def row(self, trace: str, kept: Sequence[TraceRequest]) -> ReplayRow:
        """Return what is computed from all requests."""
        seen = [self._blocks.resized(request) for request in kept]
        if self._is_isolated:
            seen = [tenants_apart(request) for request in seen]
        sums = COMPUTED[self._policy](seen, self._capacity_blocks)
        head = (trace, self._policy, self._capacity_blocks, self._blocks.tokens)
        return ReplayRow(*head, Counted(sums, rates_of(sums)))


def make_runs(
    plan: ReplayPlan, own_tokens: int, *, has_partial_ids: bool, has_tenants: bool
) -> list[Run]:
    """Return a run for each block size, capacity and policy of a plan.

    Args:
        own_tokens: of the trace's own blocks.

    Raises:
        ConfigError: a capacity or block size does not go with the trace's blocks.
    """
    runs: list[Run] = []
    for wanted in plan.block_tokens:
        factor, rest = divmod(wanted or own_tokens, own_tokens)
        if rest or not factor:
            reason = f"must be a multiple of the trace's own {own_tokens}"
            raise ConfigError("block_tokens", wanted, reason)
        blocks = Blocks(factor * own_tokens, factor, has_partial_ids)
        for capacity in plan.capacities:
            for policy in plan.policies:
                if policy in COMPUTED:
                    runs.append(ComputedRun(plan, policy, capacity, blocks))
                else:
                    runs.append(OnlineRun(plan, policy, capacity, blocks, has_tenants))
    return runs
