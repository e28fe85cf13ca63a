"""A trace, read once, through several caches side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefixcache.errors import ConfigError
from prefixcache.traces.computed import COMPUTED
from prefixcache.traces.curve_points import CurvePoints
from prefixcache.traces.files import Progress
from prefixcache.traces.reading import ReadReport
from prefixcache.traces.records import TraceRequest
from prefixcache.traces.runs import ReplayPlan, ReplayRow, Run, make_runs
from prefixcache.traces.trace import Trace
from prefixcache.traces.why import Why


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What came of a trace."""

    trace: Trace
    time_unit: str
    block_tokens: int
    report: ReadReport
    rows: Sequence[ReplayRow]
    why: Why | None = None  # None: nobody asked
    curve: CurvePoints | None = None

    @property
    def tokenizer(self) -> str | None:
        """What made tokens of the trace's text; None: it has none."""
        if not self.trace.format.has_text:
            return None
        encoder = self.trace.options.encoder
        return "of the given tokenizer" if encoder else "stand-in: four bytes of UTF-8 each"


def replay(trace: Trace, plan: ReplayPlan, *, progress: Progress | None = None) -> ReplayResult:
    """Read a trace and run it through every cache of the plan.

    Whether the trace has tenants is told by its first request.

    Raises:
        TraceError: the trace cannot be read.
        ConfigError: a capacity or block size does not go with the trace's blocks, or tenants are
            to be isolated and only later requests have one.

    Cost: for each policy of the index and capacity about a millisecond per ten requests.
    """
    reading = trace.read(progress)
    runs: list[Run] = []
    kept: list[TraceRequest] = []
    is_kept = any(name in COMPUTED for name in plan.policies)
    block_tokens, has_tenants = 0, False
    for request in reading:
        if not runs:
            block_tokens, has_tenants = request.block_tokens, request.tenant is not None
            runs = make_runs(
                plan,
                block_tokens,
                has_partial_ids=trace.format.has_partial_ids,
                has_tenants=has_tenants,
            )
        if request.tenant is not None and not has_tenants and plan.what_if.is_isolated:
            reason = "the first request has no tenant and a later one has: name all, or say shared"
            raise ConfigError("tenants", "isolated", reason)
        for run in runs:
            run.add(request)
        if is_kept:
            kept.append(request)
    rows = [run.row(trace.name, kept) for run in runs]
    return ReplayResult(trace, reading.time_unit, block_tokens, reading.report, rows)
