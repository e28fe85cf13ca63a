"""What came of a replay, as one page of HTML that loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from prefixcache.traces.replay import ReplayResult
from prefixcache.traces.report import headline, result_table, row_notes, skipped_lines, trace_lines
from prefixcache.traces.report_why import why_tables
from prefixcache.traces.series import over_capacity, over_distance, over_time
from prefixcache.traces.svg import line_chart
from prefixcache.traces.tally import DEFINITIONS

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; max-width: 42rem; }
svg text { font-size: 11px; fill: currentColor; }
svg .grid { stroke: #8884; }
figcaption span { margin-right: 1rem; white-space: nowrap; }
"""


def as_page(results: Sequence[ReplayResult], *, command: str) -> str:
    """Return the page. Names that traces and people gave are escaped.

    Args:
        command: that made it, to be shown.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><meta charset="utf-8"><title>Replay</title>',
        f"<style>{_STYLE}</style><h1>Replay</h1>",
        f"<p><code>{escape(command)}</code></p><p>{escape(headline())}</p>",
        _table(result_table(results)),
        *[f"<p>{escape(note)}</p>" for r in results for row in r.rows for note in row_notes(row)],
        *[part for result in results for part in _trace_parts(result)],
        "<h2>Definitions</h2><dl>",
        *[f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in DEFINITIONS.items()],
        "</dl></html>",
    ]
    return "\n".join(parts) + "\n"


def _trace_parts(result: ReplayResult) -> Iterator[str]:
    yield f"<h2>{escape(result.trace.name)}</h2>"
    yield f"<p>{'<br>'.join(map(escape, trace_lines(result)))}</p>"
    if skipped := "".join(
        f"<li>{escape(line)}</li>" for line in skipped_lines(result.trace.name, result.report)
    ):
        yield f"<ul>{skipped}</ul>"
    yield "<h3>Hit rate by capacity</h3>"
    yield line_chart(over_capacity(result), x_label="capacity, blocks", is_log=True)
    yield "<h3>Hit rate over time</h3>"
    yield line_chart(over_time(result), x_label="seconds of the trace")
    if result.why is not None:
        yield "<h3>Share of all hits by the room that they need</h3>"
        yield line_chart(over_distance(result), x_label="blocks", is_log=True)
        yield "<h3>Why</h3>"
        yield from map(_table, why_tables(result.why))


def _table(lines: Sequence[Sequence[str]]) -> str:
    heads, *rows = lines
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
