"""The tiers in numbers."""

from __future__ import annotations

from prefixcache.engine.tiers.lane import TierLane
from prefixcache.engine.tiers.tiers import Tiers
from prefixcache.kv.host import HostTier
from prefixcache.types import TierStats


def tier_stats(tiers: Tiers) -> dict[str, TierStats]:
    """Return what each tier has done, and how it is, by name."""
    found: dict[str, TierStats] = {}
    if tiers.host is not None:
        found["host"] = _of_host(tiers.host, *tiers.hits.get("host", (0, 0)))
    for lane in tiers.lanes:
        found[lane.name] = _of_lane(lane, *tiers.hits.get(lane.name, (0, 0)))
    return found


def _of_host(host: HostTier, n_requests: int, n_tokens: int) -> TierStats:
    block_bytes = host.arena.memory_bytes // max(host.n_blocks, 1)
    return TierStats(
        size_bytes=host.arena.memory_bytes,
        used_bytes=host.arena.used_bytes,
        hit_requests=n_requests,
        hit_tokens=n_tokens,
        read_bytes=host.counters.read_bytes,
        written_bytes=host.counters.written_bytes,
        dropped_bytes=host.counters.refused_blocks * block_bytes,
    )


def _of_lane(lane: TierLane, n_requests: int, n_tokens: int) -> TierStats:
    counters, room = lane.counters, lane.room
    return TierStats(
        size_bytes=None if room is None else room.size_bytes,
        used_bytes=None if room is None else room.used_bytes,
        is_out=lane.breaker.is_out,
        hit_requests=n_requests,
        hit_tokens=n_tokens,
        read_bytes=counters.read_bytes,
        written_bytes=counters.written_bytes,
        waiting_bytes=lane.waiting_bytes,
        dropped_bytes=counters.dropped_bytes,
        refused_blocks=counters.refused_blocks,
        failures=lane.breaker.failures,
    )
