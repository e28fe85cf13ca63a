"""Counters that go on where a worker that has ended left them."""

from __future__ import annotations

from collections import Counter

import msgspec

from prefixcache.types import EngineStats, TierStats

_TOTALS = tuple(name for name in EngineStats.__struct_fields__ if name.endswith("_total"))
_TIER_GAUGES = frozenset({"size_bytes", "used_bytes", "is_out", "waiting_bytes"})
_TIER_TOTALS = tuple(name for name in TierStats.__struct_fields__ if name not in _TIER_GAUGES)
_GONE = TierStats()


def after(past: EngineStats, latest: EngineStats) -> EngineStats:
    """Return the latest numbers, with the counters of the past added to theirs.

    A tier that only the past has keeps its counters: none of them ever falls.
    """
    sums = {name: getattr(past, name) + getattr(latest, name) for name in _TOTALS}
    misses = Counter(past.misses) + Counter(latest.misses)
    tiers = {
        name: _tier_after(past.tiers.get(name, _GONE), latest.tiers.get(name, _GONE))
        for name in latest.tiers | past.tiers
    }
    return msgspec.structs.replace(latest, **sums, misses=dict(misses), tiers=tiers)


def _tier_after(past: TierStats, latest: TierStats) -> TierStats:
    sums = {name: getattr(past, name) + getattr(latest, name) for name in _TIER_TOTALS}
    return msgspec.structs.replace(latest, **sums)
