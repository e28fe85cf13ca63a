"""Measure the sampled miss-ratio curve on a made-up trace that is streamed, never held.

    python examples/sampled_curve.py --json examples/results/sampled_curve.json

Making the trace is timed request by request, and its processor time is told apart from the curve's.
Peak memory is the process's, with Python and numpy in it.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefixcache.bench.machine import machine
from prefixcache.traces import Arrivals, MultiTurn, TraceRequest, sampled_miss_ratio_curve

CAPACITIES = (4096, 100_000, 1_000_000, None)


class Stream:
    """Conversations of five turns, made as they are read, until they have so many blocks."""

    def __init__(self, n_blocks: int) -> None:
        self._n_blocks = n_blocks
        self.seconds = 0.0  # of the processor, that making them took so far

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests, and count the time in between that is ours."""
        made, n_left = self._workload().generate(), self._n_blocks
        while n_left > 0:
            start = time.process_time()
            request = next(made)
            self.seconds += time.process_time() - start
            n_left -= len(request.hash_ids)
            yield request

    def _workload(self) -> MultiTurn:
        return MultiTurn(
            requests=self._n_blocks,  # one has at least a block
            turns=5,
            system_tokens=1024,
            user_tokens=4096,
            output_tokens=512,
            arrivals=Arrivals(per_second=50),
        )


def peak_mib() -> float:
    """Return the most memory that this process has had so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024**2 if sys.platform == "darwin" else 1024), 1)


def measured(n_blocks: int) -> dict[str, Any]:
    """Return what the curve of so many blocks cost, and hits at some capacities."""
    stream, peak_before, start = Stream(n_blocks), peak_mib(), time.process_time()
    curve = sampled_miss_ratio_curve(stream)
    seconds = time.process_time() - start - stream.seconds
    total = curve.at(None)
    return {
        "requests": total.requests,
        "blocks": total.blocks,
        "seconds": {"curve": round(seconds, 1), "making_the_trace": round(stream.seconds, 1)},
        "microseconds_per_block": round(1e6 * seconds / total.blocks, 2),
        "peak_mib": {"before": peak_before, "after": peak_mib()},
        "hit_blocks": {str(size or "unlimited"): curve.hit_blocks(size) for size in CAPACITIES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--blocks", type=int, default=20_000_000, help="of all prompts")
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    arguments = parser.parse_args()
    result = {
        "command": " ".join(["python examples/sampled_curve.py", *sys.argv[1:]]),
        "machine": machine(),
        "seconds_are": "processor time of one run",
        **measured(arguments.blocks),
    }
    arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
