"""What came of a replay, as data for JSON and as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields

from prefixcache.traces.reading import ReadReport, place
from prefixcache.traces.replay import ReplayResult
from prefixcache.traces.report_why import why_data, why_text
from prefixcache.traces.runs import ReplayRow
from prefixcache.traces.table import aligned
from prefixcache.traces.tally import DEFINITIONS, HEADLINE, Counted, Period

_HEADS = (
    "trace",
    "capacity",
    "policy",
    "block",
    "hit blocks",
    "by token",
    "by block",
    "per request",
)
_LEFT = (0, 2)
_SHOWN_ROWS = 5


def as_data(results: Sequence[ReplayResult]) -> dict[str, object]:
    """Return what is known of every trace and row, ready for JSON."""
    return {
        "definitions": dict(DEFINITIONS),
        "headline": HEADLINE,
        "traces": [_trace_data(result) for result in results],
        "results": [_row_data(row) for result in results for row in result.rows],
    }


def as_text(results: Sequence[ReplayResult]) -> str:
    """Return a paragraph for each trace and a table of all rows."""
    paragraphs = ["\n".join(trace_lines(result)) for result in results]
    whys = [why_text(result.trace.name, result.why) for result in results if result.why is not None]
    table = aligned(result_table(results), left=_LEFT)
    notes = [line for result in results for row in result.rows for line in row_notes(row)]
    return "\n\n".join([*paragraphs, *whys, "\n".join([headline(), table, *notes])])


def headline() -> str:
    """Return which definition of a hit rate comes first, and what it says."""
    return f"Hit rate {HEADLINE.replace('_', ' ')}: {DEFINITIONS[HEADLINE]}."


def row_notes(row: ReplayRow) -> Iterator[str]:
    """Yield what else is to be known of a row: its warm-up, and what what-ifs counted."""
    name = f"{row.trace}, {row.policy}, {_limit(row.capacity_blocks)}"
    if row.after_warm_up is not None:
        rate = _rate(row.after_warm_up.rates.by_token)
        yield f"{name}: by token {rate} without the first {row.warm_up_requests:,} requests"
    for key, value in row.extras.items():
        if not isinstance(value, list):
            shown = _limit(value) if key.endswith("capacity_blocks") else _shown(value)
            yield f"{name}: {key.replace('_', ' ')} {shown}"


def result_table(results: Sequence[ReplayResult]) -> list[tuple[str, ...]]:
    """Return lines of cells, a line for each row; the first one names the columns."""
    return [_HEADS, *[_row_cells(row) for result in results for row in result.rows]]


def skipped_lines(name: str, report: ReadReport) -> Iterator[str]:
    """Yield a line for each of the first rows that were not used, and one for the others."""
    for row in report.skipped[:_SHOWN_ROWS]:
        yield f"{row.file}, {place(row.line)}: skipped: {row.reason}"
    if (n_more := report.rows_skipped - _SHOWN_ROWS) > 0:
        yield f"{name}: {n_more:,} more rows were skipped"


def _trace_data(result: ReplayResult) -> dict[str, object]:
    trace, report = result.trace, result.report
    return {
        "trace": trace.name,
        "format": trace.format.name,
        "files": list(map(str, trace.files)),
        "ignored_files": list(map(str, trace.ignored_files)),
        "block_tokens": result.block_tokens,
        "partial_last_block": trace.format.partial_block,
        "tokenizer": result.tokenizer,
        "time_unit": result.time_unit,
        "span_seconds": _span_seconds(report),
        "sorted": trace.options.sort,
        **asdict(trace.pacing),
        **asdict(report),
        "skipped": [row._asdict() for row in report.skipped],
        "defaults": dict(report.defaults),
        "why": None if result.why is None else why_data(result.why),
    }


def _row_data(row: ReplayRow) -> dict[str, object]:
    return {
        "trace": row.trace,
        "policy": row.policy,
        "capacity_blocks": row.capacity_blocks,
        "block_tokens": row.block_tokens,
        **_counted_data(row.counted),
        "after_warm_up": None if row.after_warm_up is None else _counted_data(row.after_warm_up),
        "warm_up_requests": row.warm_up_requests,
        "over_time": _columns(row.periods),
        "tenants": {name: asdict(sums) for name, sums in row.tenants.items()},
        **row.extras,
    }


def _counted_data(counted: Counted) -> dict[str, object]:
    return {**asdict(counted.sums), "hit_rate": counted.rates._asdict()}


def trace_lines(result: ReplayResult) -> Iterator[str]:
    """Yield what is to be known of a trace and of its reading, a line each."""
    trace, report = result.trace, result.report
    files = f"{len(trace.files)} files, " if len(trace.files) > 1 else ""
    unit = f"timestamps in {result.time_unit}" if report.is_timed else "no timestamps"
    yield (
        f"{trace.name}: {files}{trace.format.name}, blocks of {result.block_tokens} tokens,"
        f" {unit}, {_span_seconds(report):,.0f} s"
    )
    yield (
        f"rows: {report.rows_read:,} read, {report.rows_used:,} used,"
        f" {report.rows_skipped:,} skipped"
    )
    yield f"a last block that is not full {trace.format.partial_block}"
    if result.tokenizer is not None:
        yield f"tokens: {result.tokenizer}"
    yield from _oddities(result)


def _columns(periods: Sequence[Period]) -> dict[str, list[float]]:
    """Return periods as a list for each field: shorter than an object each."""
    names = [field.name for field in fields(Period)]
    return {name: [getattr(period, name) for period in periods] for name in names}


def _oddities(result: ReplayResult) -> Iterator[str]:
    report = result.report
    if report.inconsistent_rows:
        yield (
            f"rows with an id that follows another one elsewhere: {report.inconsistent_rows:,}"
            " (such blocks are told apart by all that is before them)"
        )
    if report.rows_out_of_order:
        yield (
            f"rows that arrived before the row in front of them: {report.rows_out_of_order:,}"
            " (they keep their place; --sort orders them)"
        )
    for name, n_rows in report.defaults.items():
        meaning = "they share nothing" if name == "hash_ids" else "taken for 0"
        yield f"rows that lack {name}: {n_rows:,} ({meaning})"
    if n_ignored := len(result.trace.ignored_files):
        yield f"files of the folder that are no traces by their names: {n_ignored:,}"


def _row_cells(row: ReplayRow) -> tuple[str, ...]:
    return (
        row.trace,
        _limit(row.capacity_blocks),
        row.policy,
        f"{row.block_tokens:,}",
        f"{row.counted.sums.hit_blocks:,}",
        _rate(row.counted.rates.by_token),
        _rate(row.counted.rates.by_block),
        _rate(row.counted.rates.mean_per_request),
    )


def _limit(n_blocks: object) -> str:
    return "unlimited" if n_blocks is None else f"{n_blocks:,}"


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.4f}"


def _span_seconds(report: ReadReport) -> float:
    return (report.latest_seconds or 0.0) - (report.earliest_seconds or 0.0)
