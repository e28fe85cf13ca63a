"""Measure what invariant mode costs, and fill the manual's table from the result file.

    python -m examples.invariant_cost --measure     # writes results/invariant.json, takes minutes
    python -m examples.invariant_cost               # rewrites the table in the page

Both modes take turns, step by step; the ratio is the median of the ratios of neighbours.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from dataclasses import asdict, dataclass

from examples.index_speed import RESULTS, ROOT, Result, amount, filled, place, read
from prefixcache.bench.machine import machine
from prefixcache.config import EngineConfig, WeightsName
from prefixcache.engine.loading import LoadedModel, load_model
from prefixcache.engine.weights.quality import step_ms

PAGE = ROOT / "gateway/manual/invariant.md"
COMMAND = "python -m examples.invariant_cost --measure"
WEIGHTS: tuple[WeightsName, ...] = ("float32", "16bit", "int8")
ROOM_BYTES = 512 * 1024**2
REPEATS = 9


@dataclass(frozen=True)
class Work:
    """One step: new tokens for each of some sequences that have a context already."""

    title: str
    n_rows: int
    n_tokens: int
    context: int


WORKS = (
    Work("a prompt of 1,024", 1, 1024, 0),
    Work("one answer after 256", 1, 1, 256),
    Work("eight answers after 256", 8, 1, 256),
    Work("one answer after 1,024", 1, 1, 1024),
    Work("eight answers after 1,024", 8, 1, 1024),
)


@dataclass(frozen=True)
class Row:
    """A step in both modes: medians of processor milliseconds on one thread."""

    weights: str
    work: str
    normal_ms: float
    invariant_ms: float
    ratio: float


def measure() -> list[Row]:
    """Return the costs with the default model, for each form of weights."""
    rows = []
    for weights in WEIGHTS:
        normal, invariant = (_loaded(weights, invariant=each) for each in (False, True))
        rows += [_row(weights, work, normal, invariant) for work in WORKS]
    return rows


def _loaded(weights: WeightsName, *, invariant: bool) -> LoadedModel:
    config = EngineConfig(
        weights=weights, invariant=invariant, threads=1, kv_memory_bytes=ROOM_BYTES
    )
    return load_model(config, env=os.environ, report=lambda line: print(line, file=sys.stderr))


def _row(weights: str, work: Work, normal: LoadedModel, invariant: LoadedModel) -> Row:
    repeats = max(3, REPEATS // work.n_tokens)
    pairs = []
    for _ in range(repeats):
        one, other = (
            step_ms(
                loaded,
                n_rows=work.n_rows,
                n_tokens=work.n_tokens,
                context=work.context,
                repeats=1,
            )
            for loaded in (normal, invariant)
        )
        pairs.append((one, other))
    return Row(
        weights,
        work.title,
        normal_ms=round(statistics.median(one for one, _ in pairs), 2),
        invariant_ms=round(statistics.median(other for _, other in pairs), 2),
        ratio=round(statistics.median(other / one for one, other in pairs), 2),
    )


def table(result: Result) -> str:
    """Return the table: for each step and form of weights, both modes and their ratio."""
    lines = [
        "| step | " + " | ".join(f"`{weights}`" for weights in WEIGHTS) + " |",
        "|---" * (len(WEIGHTS) + 1) + "|",
    ]
    for work in WORKS:
        cells = [
            f"{amount(row['normal_ms'])} → {amount(row['invariant_ms'])} ({row['ratio']:.2f})"
            for weights in WEIGHTS
            for row in result["rows"]
            if (row["weights"], row["work"]) == (weights, work.title)
        ]
        lines.append(f"| {work.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def render(page: str, result: Result) -> str:
    """Return `page` with the table as the result has it."""
    torch = result["machine"]["versions"]["torch"]
    where = f"{place(result)[:-1]}, torch {torch}. `{result['command']}`"
    return filled(page, "cost", f"{where}\n\n{table(result)}")


def main() -> None:
    """Measure if told to, else rewrite the page."""
    if "--measure" in sys.argv[1:]:
        rows = [asdict(row) for row in measure()]
        result = {"machine": machine(), "command": COMMAND, "rows": rows}
        text = json.dumps(result, indent=1) + "\n"
        (RESULTS / "invariant.json").write_text(text, encoding="utf-8")
        return
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(render(page, read("invariant.json")), encoding="utf-8")


if __name__ == "__main__":
    main()
