"""Fill the tables of the manual's page on the gateway's cost from the result file beside this.

    python examples/gateway_cost.py

`results/gateway_cost.json` is written by
`prefixcache bench gateway --json examples/results/gateway_cost.json`. The page's text is written by
hand.
"""

from __future__ import annotations

from examples.index_speed import ROOT, Result, amount, filled, place, read

PAGE = ROOT / "gateway/manual/gateway-cost.md"


def rates_table(result: Result) -> str:
    """Return the table of rates and latencies; in brackets, rates against the plain handler's."""
    lines = [
        "| answers | tokens | at once | server | requests/s | p50, ms | p99, ms | added p50"
        " | added p99 |",
        "|---" * 9 + "|",
    ]
    for row in result["rows"]:
        kind = "streamed" if row["is_streamed"] else "whole"
        rate = f"{amount(row['requests_per_second'])} ({row['to_plain']:.2f})"
        figures = (row[name] for name in ("p50_ms", "p99_ms", "added_p50_ms", "added_p99_ms"))
        cells = (kind, row["tokens"], row["at_once"], row["server"], rate, *map(amount, figures))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def streams_table(result: Result) -> str:
    """Return what open streams hold in memory."""
    (held,) = result["open_streams"]
    return "\n".join(
        [
            f"| {held['streams']:,} open streams | bytes a stream |",
            "|---|---|",
            f"| gateway | {held['gateway_bytes_per_stream']:,} |",
            f"| plain | {held['plain_bytes_per_stream']:,} |",
        ]
    )


def large_table(result: Result) -> str:
    """Return how small requests fare beside large ones."""
    lines = [
        "| 5 MB prompts at a time | `/health` p50, ms | p99 | longest | longest pause of streams |",
        "|---" * 5 + "|",
    ]
    for row in result["large_prompts"]:
        names = ("health_p50_ms", "health_p99_ms", "health_max_ms", "stream_longest_gap_ms")
        figures = " | ".join(amount(row[name]) for name in names)
        lines.append(f"| {row['large_prompts_at_once']} | {figures} |")
    return "\n".join(lines)


def render(page: str, result: Result) -> str:
    """Return `page` with its tables as the result has them."""
    page = filled(page, "rates", f"{place(result)} `{result['command']}`\n\n{rates_table(result)}")
    page = filled(page, "streams", streams_table(result))
    return filled(page, "large", large_table(result))


def main() -> None:
    """Rewrite the page."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(render(page, read("gateway_cost.json")), encoding="utf-8")


if __name__ == "__main__":
    main()
