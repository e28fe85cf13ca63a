"""The end of the tiers' threads, within one time for all of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from prefixcache.engine.tiers.lane import TierLane

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0  # in all; the gateway kills a worker that has not ended after 3 s
_DRAIN_SHARE = 0.75  # of that time is for writing, the rest for calls that are under way


def close_lanes(
    lanes: Sequence[TierLane], seconds: float, clock: Callable[[], float] = time.monotonic
) -> None:
    """Have lanes write what waits and end, all of them in `seconds` together.

    They write side by side. What none of that time was left for is dropped, counted and logged. A
    call that hangs is left behind with its thread, which keeps no process alive.
    """
    before = {lane.name: lane.counters.dropped_bytes for lane in lanes}
    begin = clock()

    def left(share: float) -> float:
        return max(begin + share * seconds - clock(), 0.0)

    for lane in lanes:
        lane.drain(left(_DRAIN_SHARE))
    for lane in lanes:
        lane.stop()
    for lane in lanes:
        lane.join(left(1.0))
    for lane in lanes:
        n_bytes = lane.counters.dropped_bytes - before[lane.name]
        if n_bytes:
            logger.warning("the %s tier was closed with %d bytes unwritten", lane.name, n_bytes)
