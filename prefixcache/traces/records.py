"""What a trace says of each request, whatever its format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace."""

    timestamp_seconds: float  # of its arrival, from the trace's start
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]  # one per block; each stands for the whole prefix up to its end
    block_tokens: int


def merged(traces: Sequence[Iterable[TraceRequest]]) -> list[TraceRequest]:
    """Return the requests of several traces that start at one moment, by arrival.

    Their hash ids are made different, so that no trace matches another.
    """
    apart = [
        replace(request, hash_ids=tuple(id * len(traces) + index for id in request.hash_ids))
        for index, trace in enumerate(traces)
        for request in trace
    ]
    return sorted(apart, key=lambda request: request.timestamp_seconds)
