"""A trace: files of one format, read as one stream of requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import merge
from operator import attrgetter
from pathlib import Path

from prefixcache.errors import TraceError
from prefixcache.traces.files import Progress, find_files
from prefixcache.traces.formats import Merge, TraceFormat, format_named, format_of
from prefixcache.traces.pacing import PacedClock, Pacing
from prefixcache.traces.prefix_ids import PrefixIds, chained
from prefixcache.traces.reading import FIRST_UNSHARED_ID, Reading, ReadOptions, ReadReport, place
from prefixcache.traces.records import TraceRequest

_MAX_KEPT = 1000  # places of inconsistent rows that a report keeps
_BY_ARRIVAL = attrgetter("timestamp_seconds")


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was found, and how it is to be read."""

    name: str
    files: tuple[Path, ...]
    ignored_files: tuple[Path, ...]  # in its folder, but no traces
    format: TraceFormat
    options: ReadOptions
    pacing: Pacing

    @property
    def n_bytes(self) -> int:
        """What its files have on disk."""
        return sum(file.stat().st_size for file in self.files)

    def read(self, progress: Progress | None = None) -> TraceReading:
        """Begin to read it, from the start."""
        return TraceReading(self, progress)


class TraceReading:
    """One pass over a trace. The report is complete when the requests are through.

    Requests come in the order of the file; several files are merged by arrival. Times are seconds
    from the first request; ids stand for whole prefixes.

    Raises, as it is read:
        TraceError: a file cannot be read, no row can be used, or, with `strict`, some row cannot.

    Cost: memory for a row of each file and for the ids that `PrefixIds` remembers; WEKA
    conversations and traces that are to be sorted are held whole.
    """

    def __init__(self, trace: Trace, progress: Progress | None) -> None:
        self._trace = trace
        self._reading = Reading(trace.options, trace.format.time_unit, progress)

    @property
    def report(self) -> ReadReport:
        """What was found so far."""
        return self._reading.report

    @property
    def time_unit(self) -> str:
        """What the trace's timestamps count: s, ms or us."""
        return self._reading.time_unit

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests. To be called once."""
        found: Iterable[TraceRequest] = self._merged()
        if self._trace.options.sort:
            found = sorted(found, key=_BY_ARRIVAL)
        block_tokens = None
        for request in self._placed(found):
            if request.block_tokens != (block_tokens or request.block_tokens):
                sizes = f"{block_tokens} and {request.block_tokens} tokens"
                reason = f"blocks of {sizes} are in one trace; replay its files one by one"
                raise TraceError(Path(self._trace.name), "its files", reason)
            block_tokens = request.block_tokens
            yield request
        if block_tokens is None:
            raise TraceError(Path(self._trace.name), "all of it", _why_empty(self.report))

    def _merged(self) -> Iterator[TraceRequest]:
        trace, reading = self._trace, self._reading
        streams = [trace.format.read(file, reading) for file in trace.files]
        if len(streams) > 1 and trace.format.has_own_ids:
            streams = [_apart(stream, i, len(streams)) for i, stream in enumerate(streams)]
        if trace.format.merge is Merge.IN_TURN:
            for stream in streams:
                yield from stream
        elif len(streams) == 1:
            yield from streams[0]
        else:
            yield from merge(*streams, key=_BY_ARRIVAL)

    def _placed(self, found: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
        """Yield the requests with their times from the first one on and ids that are prefixes."""
        report, clock, prefixes = self.report, PacedClock(self._trace.pacing), PrefixIds()
        has_prefix_ids = self._trace.format.has_prefix_ids
        before = float("-inf")
        for number, request in enumerate(found, start=1):
            seconds, ids = request.timestamp_seconds, request.hash_ids
            _note_time(report, seconds, before)
            before = seconds
            if has_prefix_ids:
                fitting = prefixes.consistent(ids)
                if fitting is not ids:
                    report.inconsistent_rows += 1
                    if len(report.inconsistent_at) < _MAX_KEPT:
                        report.inconsistent_at.append(number)
            else:
                fitting = _chained(ids)
            yield request.with_ids(clock.seconds(seconds), fitting, request.block_tokens)


def open_trace(
    name: str,
    *,
    format: str | None = None,
    options: ReadOptions | None = None,
    pacing: Pacing | None = None,
) -> Trace:
    """Find a trace and its format.

    Args:
        name: a file, a folder (all its traces as one) or a pattern such as `logs/*.jsonl`.
        format: one of `FORMATS`; None: told by what the files begin with.
        pacing: None: time passes as the trace says.

    Raises:
        TraceError: there is no such file, or its format is not known.
        ConfigError: there is no such format.
    """
    files, ignored = find_files(name)
    if format is not None:
        found = format_named(format)
    else:
        formats = [(file, format_of(file)) for file in files]
        found = formats[0][1]
        for file, other in formats:
            if other is not found:
                reason = f"is in the format {other.name}, but {files[0]} in {found.name}"
                raise TraceError(file, "the file", f"{reason}; replay them one by one")
    return Trace(
        name,
        tuple(files),
        tuple(ignored),
        found,
        options or ReadOptions(),
        pacing or Pacing(),
    )


def read_trace(
    path: Path | str, *, format: str | None = None, options: ReadOptions | None = None
) -> list[TraceRequest]:
    """Return a trace's requests by arrival, times counted from the earliest.

    Args and errors are those of `open_trace`; a row that cannot be used is an error, unless the
    options say otherwise.
    """
    options = replace(options or ReadOptions(strict=True), sort=True)
    return list(open_trace(str(path), format=format, options=options).read())


def _apart(requests: Iterable[TraceRequest], index: int, n_files: int) -> Iterator[TraceRequest]:
    """Make a file's ids different from those of the others."""
    for request in requests:
        ids = request.hash_ids
        if ids and ids[0] < FIRST_UNSHARED_ID:
            own = tuple((id * n_files + index) % FIRST_UNSHARED_ID for id in ids)
            yield request.with_ids(request.timestamp_seconds, own, request.block_tokens)
        else:
            yield request


def _chained(ids: tuple[int, ...]) -> tuple[int, ...]:
    return ids if not ids or ids[0] >= FIRST_UNSHARED_ID else chained(ids)


def _note_time(report: ReadReport, seconds: float, before: float) -> None:
    if report.first_seconds is None or report.earliest_seconds is None:
        report.first_seconds = report.earliest_seconds = report.latest_seconds = seconds
    report.earliest_seconds = min(report.earliest_seconds, seconds)
    report.latest_seconds = max(report.latest_seconds or seconds, seconds)
    report.rows_out_of_order += seconds < before


def _why_empty(report: ReadReport) -> str:
    if not report.skipped:
        return "holds no requests"
    first = report.skipped[0]
    n_rows = f"{report.rows_skipped} of {report.rows_read} rows cannot be used"
    return f"holds no requests: {n_rows}; {place(first.line)}: {first.reason}"
