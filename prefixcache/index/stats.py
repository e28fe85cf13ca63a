"""Counters and gauges, for an operator's eyes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from prefixcache.index.misses import MissReason, Tally
from prefixcache.index.namespaces import Namespace


class LookupStats(msgspec.Struct, frozen=True, kw_only=True):
    """What requests looked for and found; no number ever falls."""

    requests: int  # `acquire` calls that read
    tokens: int  # prompt tokens of those
    hit_tokens: int  # how many of them were cached
    misses: dict[MissReason, int]  # requests that did not find all, by what stood in the way


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the cache was made; none ever falls."""

    lookups: LookupStats
    evicted_blocks: int  # by a policy's choice; of each layer group
    reclaimed_blocks: int  # of invalidated trees; of each layer group
    double_releases: int


class TenantStats(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's blocks now, and its counters."""

    tenant: str
    cached_blocks: int
    held_blocks: int
    retained_blocks: int  # of both
    reserved_blocks: int
    max_blocks: int
    lookups: LookupStats
    evicted_blocks: int


class NamespaceStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a namespace since its present tree was planted."""

    namespace: Namespace
    lookups: LookupStats


def sum_of(tallies: Iterable[Tally]) -> LookupStats:
    """Add up the look-ups of some trees."""
    total = Tally()
    for tally in tallies:
        total.merge(tally)
    return LookupStats(
        requests=total.lookups,
        tokens=total.lookup_tokens,
        hit_tokens=total.hit_tokens,
        misses=dict(total.misses),
    )
