"""Hits of least-recently-used caches of every capacity, from one pass over a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from prefixcache.errors import ConfigError
from prefixcache.traces.places import Counts, Places
from prefixcache.traces.prefixes import Prefixes
from prefixcache.traces.recency import RecencyOrder
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.sums import Simulation, Sums


class MissRatioCurve:
    """What a trace hits in a cache that gives up leaves by last use, whatever its capacity.

    Args:
        total: the sums of the trace, whatever the hits in it.
        capacities: at which there are more hits than at the one before, rising.
        hits: by what each of them adds: blocks, tokens and attention pairs, [3, capacities].
    """

    def __init__(self, total: Simulation, capacities: Counts, hits: Counts) -> None:
        self._total = total
        self._capacities = capacities
        self._hits = np.concatenate([np.zeros((3, 1), dtype=np.int64), hits.cumsum(axis=1)], axis=1)

    @property
    def capacities(self) -> Sequence[int]:
        """The capacities in blocks at which there are more hits than with one block less."""
        return self._capacities.tolist()  # type: ignore[no-any-return]

    def at(self, capacity_blocks: int | None) -> Simulation:
        """Return the sums at one capacity; None: unlimited. O(log n).

        Raises:
            ConfigError: the capacity is below 1.
        """
        if capacity_blocks is not None and capacity_blocks < 1:
            raise ConfigError("capacity_blocks", capacity_blocks, "must be at least 1")
        n_steps = len(self._capacities)
        if capacity_blocks is not None:
            n_steps = int(np.searchsorted(self._capacities, capacity_blocks, side="right"))
        blocks, tokens, pairs = (int(n) for n in self._hits[:, n_steps])
        return replace(self._total, hit_blocks=blocks, hit_tokens=tokens, hit_attention_pairs=pairs)

    def hit_blocks(self, capacity_blocks: int | None) -> int:
        """Return the hit blocks at one capacity; None: unlimited. Errors are those of `at`."""
        return self.at(capacity_blocks).hit_blocks


def miss_ratio_curve(requests: Iterable[TraceRequest]) -> MissRatioCurve:
    """Return the hits of `simulate` with `LruPolicy`, exactly, for all capacities at once.

    Cost: one pass, O(1) a block and O(log n) for each earlier request that one has blocks of;
    memory for all blocks of the trace. `sampled_miss_ratio_curve` does with little.
    Source: Mattson, Gecsei, Slutz, Traiger: Evaluation techniques for storage hierarchies (1970).
    """
    prefixes, order, places, sums = Prefixes(), RecencyOrder(), Places(), Sums()
    for request in requests:
        sums.add(request, 0)
        depth = 0
        for run in order.use(prefixes.path(request.hash_ids)):
            places.note(request, run.place, run.n_blocks, depth)
            depth += run.n_blocks
    return MissRatioCurve(sums.result(), *places.found())


def infinite_cache(requests: Iterable[TraceRequest]) -> Simulation:
    """Return the hits of a cache that never gives anything up: the bound for all capacities.

    Cost: O(1) a block; memory for all blocks of the trace.
    """
    prefixes, sums = Prefixes(), Sums()
    for request in requests:
        n_before = len(prefixes)
        n_blocks = len(prefixes.path(request.hash_ids))
        sums.add(request, n_blocks - (len(prefixes) - n_before))
    return sums.result()
