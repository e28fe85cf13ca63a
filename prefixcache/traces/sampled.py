"""The curve of `curve.py`, estimated in memory that does not grow with the trace."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import numpy as np

from prefixcache.errors import ConfigError
from prefixcache.traces.curve import MissRatioCurve
from prefixcache.traces.places import Counts, Places
from prefixcache.traces.recency import RecencyOrder
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.sums import Sums

DEFAULT_SAMPLED_BLOCKS = 16_384
DEFAULT_EXACT_BLOCKS = 4096

_SEED = 0
_HASH_BITS = 40  # of a prefix's hash, by which it is sampled or not
_HASH_MASK = (1 << _HASH_BITS) - 1
_MIX = 0x9E3779B97F4A7C15  # odd: spreads a hash's bits upwards


def sampled_miss_ratio_curve(
    requests: Iterable[TraceRequest],
    *,
    most_sampled_blocks: int = DEFAULT_SAMPLED_BLOCKS,
    exact_blocks: int = DEFAULT_EXACT_BLOCKS,
) -> MissRatioCurve:
    """Estimate `miss_ratio_curve` from a part of all blocks; `requests` may be a stream.

    Capacities up to `exact_blocks` are exact. Beyond, blocks are sampled by a hash of their prefix,
    at a rate that is halved whenever more than `most_sampled_blocks` would be remembered; each
    stands for as many as it is one of, in what is hit and in how far apart things are. Blocks
    are sampled one by one, not whole conversations, for one long conversation would weigh
    too much. What everybody shares, and would weigh as much, is always among the exact ones.

    How far off it is: prefixcache/design/0020-replay-methods.md.

    Raises:
        ConfigError: a number is below 1.

    Cost: O(1) a block; memory for `most_sampled_blocks + exact_blocks` blocks.
    Source: Waldspurger, Park, Garthwaite, Ahmad: Efficient MRC construction with SHARDS (2015).
    """
    for name, n in (("most_sampled_blocks", most_sampled_blocks), ("exact_blocks", exact_blocks)):
        if n < 1:
            raise ConfigError(name, n, "must be at least 1")
    recent, recent_places = RecencyOrder(exact_blocks), Places()
    sample, sums = _Sample(most_sampled_blocks), Sums()
    for request in requests:
        sums.add(request, 0)
        path = list(accumulate(request.hash_ids, _hash, initial=_SEED))[1:]
        n_exact = 0
        for run in recent.use(path):
            recent_places.note(request, run.place, run.n_blocks, n_exact)
            n_exact += run.n_blocks
        sample.use(request, path, n_exact)
    capacities, hits = recent_places.found()
    far, far_hits = sample.found(exact_blocks + 1)
    return MissRatioCurve(
        sums.result(),
        np.concatenate([capacities, far]),
        np.concatenate([hits, far_hits], axis=1),
    )


class _Sample:
    """Some of all blocks in the order of last use, and where they are found in it.

    One of `2**n_halvings` blocks is in the sample.
    """

    def __init__(self, most_blocks: int) -> None:
        self._most_blocks = most_blocks
        self._n_halvings = 0
        self._order = RecencyOrder()
        self._places = Places()

    def use(self, request: TraceRequest, path: list[int], n_exact: int) -> None:
        """Note where the sampled blocks of a prompt are found, but for its first `n_exact`."""
        limit = _HASH_MASK >> self._n_halvings
        depths = [depth for depth, block in enumerate(path) if _rank(block) <= limit]
        weight, at = 1 << self._n_halvings, 0
        for run in self._order.use([path[depth] for depth in depths]):
            for index in range(run.n_blocks):
                if depths[at] >= n_exact:
                    self._places.note(request, run.place + index, 1, depths[at], weight)
                at += 1
        while len(self._order) > self._most_blocks:
            self._halve()

    def found(self, first: int) -> tuple[Counts, Counts]:
        """Return the estimated places, from `first` on, and what was found there."""
        places, hits = self._places.found()
        return np.maximum(((places - 1) << self._n_halvings) + 1, first), hits

    def _halve(self) -> None:
        self._n_halvings += 1
        limit = _HASH_MASK >> self._n_halvings
        self._order.keep(lambda block: _rank(block) <= limit)
        self._places.halve()


def _hash(before: int, hash_id: int) -> int:
    """Return the hash of a prefix from that of the prefix before it. Equal on all machines."""
    return hash((before, hash_id))


def _rank(prefix: int) -> int:
    """Return a number below `2**_HASH_BITS` that a prefix is sampled by."""
    return prefix * _MIX >> 64 - _HASH_BITS & _HASH_MASK
