"""Request traces: reading them, and replaying them on the index. No model, no torch."""

from prefixcache.traces.formats import read_mooncake, read_trace, read_weka
from prefixcache.traces.records import TraceRequest, merged
from prefixcache.traces.simulate import Simulation, simulate

__all__ = [
    "Simulation",
    "TraceRequest",
    "merged",
    "read_mooncake",
    "read_trace",
    "read_weka",
    "simulate",
]
