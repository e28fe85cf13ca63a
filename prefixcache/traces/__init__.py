"""Request traces: reading them, and replaying them on the index. No model, no torch."""

from prefixcache.traces.formats import FORMATS, TraceFormat
from prefixcache.traces.pacing import Pacing
from prefixcache.traces.reading import ReadOptions, ReadReport, Skipped
from prefixcache.traces.recorder import TraceWriter
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.simulate import simulate
from prefixcache.traces.sums import Simulation
from prefixcache.traces.texts import TextEncoder
from prefixcache.traces.trace import Trace, TraceReading, open_trace, read_trace

__all__ = [
    "FORMATS",
    "Pacing",
    "ReadOptions",
    "ReadReport",
    "Simulation",
    "Skipped",
    "TextEncoder",
    "Trace",
    "TraceFormat",
    "TraceReading",
    "TraceRequest",
    "TraceWriter",
    "open_trace",
    "read_trace",
    "simulate",
]
