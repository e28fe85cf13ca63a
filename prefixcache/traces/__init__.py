"""Request traces: reading them, and replaying them on the index. No model, no torch."""

from prefixcache.traces.curve import MissRatioCurve, infinite_cache, miss_ratio_curve
from prefixcache.traces.flat import flat_lru
from prefixcache.traces.formats import read_mooncake, read_trace, read_weka
from prefixcache.traces.optimum import optimum
from prefixcache.traces.records import TraceRequest, merged
from prefixcache.traces.sampled import sampled_miss_ratio_curve
from prefixcache.traces.simulate import replayed, simulate
from prefixcache.traces.sums import Simulation

__all__ = [
    "MissRatioCurve",
    "Simulation",
    "TraceRequest",
    "flat_lru",
    "infinite_cache",
    "merged",
    "miss_ratio_curve",
    "optimum",
    "read_mooncake",
    "read_trace",
    "read_weka",
    "replayed",
    "sampled_miss_ratio_curve",
    "simulate",
]
