"""Request traces: reading them, and replaying them on the index. No model, no torch."""

from prefixcache.traces.arrivals import Arrivals
from prefixcache.traces.curve import MissRatioCurve, infinite_cache, miss_ratio_curve
from prefixcache.traces.flat import flat_lru
from prefixcache.traces.formats import FORMATS, TraceFormat
from prefixcache.traces.generate import Agentic, MultiTurn, SharedPrefix, Workload
from prefixcache.traces.optimum import optimum
from prefixcache.traces.pacing import Pacing
from prefixcache.traces.reading import ReadOptions, ReadReport, Skipped
from prefixcache.traces.recorder import TraceWriter
from prefixcache.traces.records import TracePrompt, TraceRequest
from prefixcache.traces.replay import ReplayResult, replay
from prefixcache.traces.runs import ReplayPlan, ReplayRow
from prefixcache.traces.sampled import sampled_miss_ratio_curve
from prefixcache.traces.simulate import replayed, simulate
from prefixcache.traces.sums import Simulation
from prefixcache.traces.texts import TextEncoder
from prefixcache.traces.token_cache import TokenCache
from prefixcache.traces.trace import Trace, TraceReading, open_trace, read_trace
from prefixcache.traces.whatif import WhatIf
from prefixcache.traces.written import mooncake_line

__all__ = [
    "FORMATS",
    "Agentic",
    "Arrivals",
    "MissRatioCurve",
    "MultiTurn",
    "Pacing",
    "ReadOptions",
    "ReadReport",
    "ReplayPlan",
    "ReplayResult",
    "ReplayRow",
    "SharedPrefix",
    "Simulation",
    "Skipped",
    "TextEncoder",
    "TokenCache",
    "Trace",
    "TraceFormat",
    "TracePrompt",
    "TraceReading",
    "TraceRequest",
    "TraceWriter",
    "WhatIf",
    "Workload",
    "flat_lru",
    "infinite_cache",
    "miss_ratio_curve",
    "mooncake_line",
    "open_trace",
    "optimum",
    "read_trace",
    "replay",
    "replayed",
    "sampled_miss_ratio_curve",
    "simulate",
]
