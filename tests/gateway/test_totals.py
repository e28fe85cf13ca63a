"""Counters over the deaths of workers."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.backends.local import IDLE_STATS
from gateway.backends.totals import after
from prefixcache.types import TierStats

COUNTERS: dict[str, Any] = {
    "hit_requests": 1,
    "hit_tokens": 64,
    "read_bytes": 100,
    "written_bytes": 200,
    "dropped_bytes": 7,
    "refused_blocks": 2,
    "failures": 3,
}
GAUGES: dict[str, Any] = {"size_bytes": 1000, "used_bytes": 300, "is_out": True, "waiting_bytes": 5}


def test_no_counter_of_a_tier_falls_when_its_worker_dies() -> None:
    """They stay while there is no worker and go on with the next one; gauges are of now."""
    assert {*COUNTERS, *GAUGES} == set(TierStats.__struct_fields__)
    one = TierStats(**COUNTERS, **GAUGES)
    past = after(IDLE_STATS, msgspec.structs.replace(IDLE_STATS, tiers={"disk": one, "host": one}))
    gone = after(past, IDLE_STATS)
    assert gone.tiers["disk"] == TierStats(**COUNTERS)
    back = after(gone, msgspec.structs.replace(IDLE_STATS, tiers={"disk": one}))
    doubled = {name: 2 * value for name, value in COUNTERS.items()}
    assert back.tiers["disk"] == TierStats(**doubled, **GAUGES)
    assert back.tiers["host"] == TierStats(**COUNTERS)
