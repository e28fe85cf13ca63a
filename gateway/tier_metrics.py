"""The tiers below the device, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from prefixcache.types import TierStats


class _Shown(NamedTuple):
    field: str
    name: str
    help: str


_COUNTERS = (
    _Shown("hit_tokens", "prefixcache_tier_hit_tokens", "Prompt tokens loaded from a tier"),
    _Shown("hit_requests", "prefixcache_tier_hits", "Requests that something was loaded for"),
    _Shown("read_bytes", "prefixcache_tier_read_bytes", "KV bytes read from a tier"),
    _Shown("written_bytes", "prefixcache_tier_written_bytes", "KV bytes written to a tier"),
    _Shown(
        "dropped_bytes",
        "prefixcache_tier_dropped_bytes",
        "KV bytes not written, for want of room or because the tier was out",
    ),
    _Shown("refused_blocks", "prefixcache_tier_refused_blocks", "Blocks read and not right"),
    _Shown("failures", "prefixcache_tier_failures", "Calls of a tier that failed"),
)
_GAUGES = (
    _Shown("size_bytes", "prefixcache_tier_size_bytes", "What a tier may hold, where known"),
    _Shown("used_bytes", "prefixcache_tier_used_bytes", "What a tier holds, where known"),
    _Shown("waiting_bytes", "prefixcache_tier_waiting_bytes", "KV bytes that wait to be written"),
    _Shown("is_out", "prefixcache_tier_out", "1 while a tier is left out after a failure"),
)


def tier_metrics(tiers: Mapping[str, TierStats]) -> Iterable[Metric]:
    """Yield what there is to tell of each tier, labelled by its name; nothing where none is set."""
    if not tiers:
        return
    kinds = ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES))
    for kind, all_shown in kinds:
        for shown in all_shown:
            family = kind(shown.name, shown.help, labels=["tier"])
            for name, stats in tiers.items():
                value = getattr(stats, shown.field)
                if value is not None:
                    family.add_metric([name], float(value))
            yield family
