"""What a cache does that knows nothing of prefixes, to compare with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from prefixcache.errors import ConfigError
from prefixcache.traces.prefixes import Prefixes
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.sums import Simulation, Sums


def flat_lru(requests: Iterable[TraceRequest], *, capacity_blocks: int) -> Simulation:
    """Return the hits of a cache that gives up the block used longest ago, be it a head or a tail.

    The blocks of a prompt are used one by one, its head first, so that its head is given up
    before its tail. Still only leading blocks count as hits: what lies behind a gap is of no use.

    Raises:
        ConfigError: the capacity is below 1.

    Cost: O(1) a block; memory for all blocks of the trace.
    """
    if capacity_blocks < 1:
        raise ConfigError("capacity_blocks", capacity_blocks, "must be at least 1")
    prefixes, sums = Prefixes(), Sums()
    resident: OrderedDict[int, None] = OrderedDict()  # the longest unused first
    for request in requests:
        path = prefixes.path(request.hash_ids)
        sums.add(
            request, next((i for i, block in enumerate(path) if block not in resident), len(path))
        )
        for block in path:
            resident[block] = None
            resident.move_to_end(block)
            if len(resident) > capacity_blocks:
                resident.popitem(last=False)
    return sums.result()
