"""The comparison of policies, from the command line to the result file and the manual."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gateway.cli import main

ROOT = Path(__file__).parent.parent.parent


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["bench", "policies", *arguments])
    assert isinstance(left.value.code, int | None)
    return left.value.code or 0


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Three requests of two blocks, of which the third is the first again."""
    rows = [
        {"timestamp": 1000 * n, "input_length": 1000, "output_length": 1, "hash_ids": ids}
        for n, ids in enumerate([[0, 1], [0, 2], [0, 1]])
    ]
    path = tmp_path / "tiny.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def test_the_table_and_the_file_say_the_same(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for each capacity and policy; unlimited is null in the file."""
    file = tmp_path / "result.json"
    options = ("--capacity", "2,unlimited", "--policy", "lru,fifo", "--json", str(file))
    assert run("--trace", trace, *options) == 0
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["command"].startswith("prefixcache")
    assert result["machine"]["cores"] > 0
    rows = result["results"]
    assert [(row["capacity_blocks"], row["policy"], row["hit_blocks"]) for row in rows] == [
        (2, "lru", 2),
        (2, "fifo", 2),
        (None, "lru", 3),
        (None, "fifo", 3),
    ]
    assert rows[2] == {
        "trace": trace,
        "policy": "lru",
        "capacity_blocks": None,
        "block_tokens": 512,
        "requests": 3,
        "blocks": 6,
        "hit_blocks": 3,
        "tokens": 3000,
        "hit_tokens": 1512,
        "attention_pairs": 1_501_500,
        "hit_attention_pairs": 512 * 513 // 2 + 500_500,
    }
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in table[1:]] == [
        ["2", "lru", "2", "0.3333", "0.1749"],
        ["2", "fifo", "2", "0.3333", "0.1749"],
        ["unlimited", "lru", "3", "0.5000", "0.4208"],
        ["unlimited", "fifo", "3", "0.5000", "0.4208"],
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--capacity", "0"), "'0' is neither a number above 0 nor 'unlimited'"),
        (("--capacity", "1e3"), "'1e3' is neither"),
        (("--policy", "lru,mru"), "'mru' is none of lru, cost-aware"),
        (("--protected-share", "0"), "0<x<=1"),
        (("--idle-ttl", "0"), "x>0"),
        (("--json", "/nowhere/result.json"), "No such file or directory"),
    ],
)
def test_bad_options_are_one_line(
    trace: str, options: tuple[str, str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and the reason on standard error."""
    assert run("--trace", trace, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


def test_a_malformed_trace_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and the file and line on standard error."""
    path = tmp_path / "bad.jsonl"
    path.write_text('{"input_length": "x"}\n', encoding="utf-8")
    assert run("--trace", str(path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "bad.jsonl, line 1: " in line


def test_figures_of_the_manual_are_the_committed_ones() -> None:
    """Every row of the manual's tables shows what the result file holds, to the digit."""
    manual = (ROOT / "gateway/manual/policies.md").read_text(encoding="utf-8")
    result = json.loads((ROOT / "examples/results/policies.json").read_text(encoding="utf-8"))
    assert result["command"] in manual
    found = {
        (row["trace"].removesuffix("_trace.jsonl"), row["capacity_blocks"], row["policy"]): row
        for row in result["results"]
    }
    heads: list[str] = []
    n_checked = 0
    for line in manual.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0] == "trace" and len(cells) > 3:
            heads = cells
        elif heads and re.fullmatch(r"[\d,]+", cells[1] if len(cells) > 1 else ""):
            for policy, shown in zip(heads[2:], cells[2:], strict=True):
                row = found[cells[0], int(cells[1].replace(",", "")), policy]
                hit = 100 * row["hit_blocks"] / row["blocks"]
                spared = 100 * row["hit_attention_pairs"] / row["attention_pairs"]
                assert shown == f"{hit:.2f} / {spared:.2f}"
                n_checked += 1
    assert n_checked >= 12 * len(heads[2:])
