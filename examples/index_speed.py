"""Fill the tables of the manual's page on the index's speed from the result files beside this.

    python examples/index_speed.py

`results/index.json` is written by `prefixcache bench index --json examples/results/index.json`;
`results/index_rivals.json` as the page says. The page's text is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "gateway/manual/index-speed.md"
RESULTS = ROOT / "examples/results"

# (workload, figure, unit, what the page calls it)
OURS = (
    ("A", "pack_us_mean", "us", "A: a prompt of 4,352 ids from a list to packed bytes"),
    ("A", "acquire_us_mean", "us", "A: `acquire`"),
    ("A", "commit_us_mean", "us", "A: `commit`"),
    ("A", "release_us_mean", "us", "A: `release`"),
    ("A", "request_us_mean", "us", "A: all three calls, mean"),
    ("A", "request_us_median", "us", "A: all three calls, median"),
    ("A", "hit_rate", "", "A: share of prompt tokens that were cached"),
    ("B", "pack_us", "us", "B: 128,000 ids from a list to packed bytes"),
    ("B", "compare_us", "us", "B: bare comparison of the 512,000 bytes"),
    ("B", "match_us", "us", "B: `match_length`"),
    ("B", "match_to_compare", "times", "B: `match_length` against the comparison"),
    ("B", "acquire_us", "us", "B: `acquire`"),
    ("B", "acquire_to_compare", "times", "B: `acquire` against the comparison"),
    ("B", "reinsert_us", "us", "B: `commit` of what is stored already"),
    ("B", "reinsert_to_compare", "times", "B: that `commit` against the comparison"),
    ("C", "requests_per_second", "a second", "C: requests"),
    ("C", "request_us_mean", "us", "C: a request, making room included"),
    ("C", "evict_us_per_block", "us", "C: eviction, a block"),
    ("C", "hit_rate", "", "C: share of prompt tokens that were cached"),
    ("C2", "evict_us_per_call", "us", "C2, {leaves:,} leaves: eviction of one leaf of 4 blocks"),
    ("C2", "evict_us_per_block", "us", "C2, {leaves:,} leaves: eviction, a block"),
    (
        "D",
        "bytes_per_block",
        "bytes",
        "D: memory a block of 16 tokens, its 64 bytes of ids included",
    ),
    ("chain", "first_turns_us", "us", "chain: a turn, mean of turns 1 to 100"),
    ("chain", "last_turns_us", "us", "chain: a turn, mean of turns 1,901 to 2,000"),
    ("chain", "last_compare_us", "us", "chain: bare comparison of the history in those last turns"),
    ("chain", "longest_path_nodes", "", "chain: nodes on the tree's longest path in the end"),
)
RIVALS = (
    ("A", "request_us", "A: a request, us"),
    ("B", "match_us", "B: match, us"),
    ("B", "reinsert_us", "B: insert again, us"),
    ("C", "request_us", "C: a request, us"),
    ("C", "evict_in_place_us_per_block", "C: eviction in place, us a block"),
    ("C", "evict_2000_us_per_block", "C: eviction of 2,000 blocks at the end, us a block"),
    ("C2", "request_us", "C2: a request, us"),
    ("C2", "evict_in_place_us_per_call", "C2: eviction in place of a leaf of 4 blocks, us"),
    ("C2", "evict_4_us_per_call", "C2: the same at the end, 1,500 times, us"),
    ("C2", "evict_2000_us_per_block", "C2: eviction of 2,000 blocks at the end, us a block"),
    ("D", "bytes_per_block", "D: memory, bytes a block"),
    ("A", "convert_us", "A: conversion from a list, us (not in the above)"),
    ("B", "convert_us", "B: conversion from a list, us (not in the above)"),
)
US = "prefixcache"
NOT_MEASURED = "–"

Result = Mapping[str, Any]


def ours_table(result: Result) -> str:
    """Return the table of our own measurement."""
    lines = ["| measured | figure |", "|---|---|"]
    for workload, figure, unit, title in OURS:
        for row in result["rows"]:
            if row["workload"] == workload:
                figures = row["figures"]
                value = f"{amount(figures[figure])} {unit}".rstrip()
                lines.append(f"| {title.format(**figures)} | {value} |")
    return "\n".join(lines)


def rivals_table(result: Result) -> str:
    """Return the table of all engines; in brackets, how many times ours each figure is."""
    engines: Sequence[str] = result["engines"]
    lines = [f"| | {' | '.join(engines)} |", "|---" * (len(engines) + 1) + "|"]
    for workload, figure, title in RIVALS:
        found = {
            row["engine"]: row["figures"][figure]
            for row in result["rows"]
            if row["workload"] == workload and figure in row["figures"]
        }
        cells = [_cell(found.get(engine), found.get(US), engine) for engine in engines]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def amount(value: float) -> str:
    """Return a figure with three digits that count, or all digits of a whole number."""
    if isinstance(value, int):
        return f"{value:,}"
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"


def place(result: Result) -> str:
    """Return what a measurement ran on."""
    machine = result["machine"]
    versions = ", ".join(
        f"{name} {version}" for name, version in result.get("versions", {}).items()
    )
    return (
        f"{machine['cores']} cores of an {machine['processor']}, Python {machine['python']}"
        f"{', ' + versions if versions else ''}."
    )


def filled(page: str, name: str, content: str) -> str:
    """Return `page` with the part between the marks of `name` replaced."""
    start, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", flags=re.DOTALL)
    whole, n_found = pattern.subn(lambda _: f"{start}{content}{end}", page)
    if n_found != 1:
        raise ValueError(f"the page has {n_found} parts named {name!r}")
    return whole


def render(page: str, ours: Result, rivals: Result) -> str:
    """Return `page` with both tables as the results have them."""
    page = filled(page, "ours", f"{place(ours)} `{ours['command']}`\n\n{ours_table(ours)}")
    return filled(page, "rivals", f"{place(rivals)} {rivals['how']}\n\n{rivals_table(rivals)}")


def read(name: str) -> Result:
    """Return a result file's content."""
    result: Result = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return result


def main() -> None:
    """Rewrite the page."""
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(render(page, read("index.json"), read("index_rivals.json")), encoding="utf-8")


def _cell(value: float | None, ours: float | None, engine: str) -> str:
    if value is None:
        return NOT_MEASURED
    if engine == US or not ours:
        return amount(value)
    return f"{amount(value)} ({value / ours:.1f})"


if __name__ == "__main__":
    main()
