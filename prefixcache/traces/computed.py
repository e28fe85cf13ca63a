"""Policies that are computed from the whole trace, by name: bounds and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from prefixcache.index.policies import POLICY_NAMES
from prefixcache.traces.curve import infinite_cache
from prefixcache.traces.flat import flat_lru
from prefixcache.traces.optimum import optimum
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.sums import Simulation

Compute = Callable[[Sequence[TraceRequest], int | None], Simulation]


def _belady(requests: Sequence[TraceRequest], capacity_blocks: int | None) -> Simulation:
    return optimum(requests, capacity_blocks=capacity_blocks)


def _flat_lru(requests: Sequence[TraceRequest], capacity_blocks: int | None) -> Simulation:
    if capacity_blocks is None:
        return infinite_cache(requests)
    return flat_lru(requests, capacity_blocks=capacity_blocks)


COMPUTED: Mapping[str, Compute] = MappingProxyType({"belady": _belady, "flat-lru": _flat_lru})
POLICIES = (*POLICY_NAMES, *COMPUTED)
