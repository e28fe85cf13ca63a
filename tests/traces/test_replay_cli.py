"""The command, from its arguments to the result file; and the field cases on traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from tests.support.tokenizers import write_chat_tokenizer
from tests.support.traces import (
    case_file,
    mooncake,
    needs_cases,
    traces_folder,
    write_lines,
    write_mooncake,
)
from tests.traces.public import needs_traces


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main(["replay", *map(str, arguments)])
    assert isinstance(left.value.code, int | None)
    return left.value.code or 0


def result_of(tmp_path: Path, *arguments: object) -> dict[str, Any]:
    file = tmp_path / "result.json"
    assert run(*arguments, "--json", file) == 0
    loaded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return loaded


def one_row(tmp_path: Path, *arguments: object) -> dict[str, Any]:
    (row,) = result_of(tmp_path, *arguments)["results"]
    assert isinstance(row, dict)
    return row


def one_trace(tmp_path: Path, *arguments: object) -> dict[str, Any]:
    (trace,) = result_of(tmp_path, *arguments)["traces"]
    assert isinstance(trace, dict)
    return trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three prompts of two blocks, the third the first again."""
    return write_mooncake(tmp_path / "tiny.jsonl", (0, 1), (0, 2), (0, 1))


def test_the_file_has_what_the_contract_says(trace: Path, tmp_path: Path) -> None:
    """An object for each trace, policy and capacity; unlimited is null."""
    result = result_of(tmp_path, trace, "--policy", "lru,belady", "--capacity", "2,unlimited")
    assert result["command"].startswith("prefixcache")
    assert result["headline"] in result["definitions"]
    rows = result["results"]
    assert [(row["capacity_blocks"], row["policy"], row["hit_blocks"]) for row in rows] == [
        (2, "lru", 2),
        (2, "belady", 3),
        (None, "lru", 3),
        (None, "belady", 3),
    ]
    shown = {name: rows[2][name] for name in ("trace", "block_tokens", "requests", "blocks")}
    assert shown == {"trace": str(trace), "block_tokens": 512, "requests": 3, "blocks": 6}
    assert (rows[2]["tokens"], rows[2]["hit_tokens"]) == (3072, 1536)
    assert rows[2]["hit_rate"]["by_token"] == 0.5


def test_the_table_names_its_headline(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which definition the first rate has, and one line for each row."""
    assert run(trace, "--capacity", "2,unlimited") == 0
    out = capsys.readouterr().out
    assert "rows: 3 read, 3 used, 0 skipped" in out
    assert "Hit rate by token: hit tokens / tokens" in out
    *_, limited, unlimited = [line.split()[1:] for line in out.splitlines()]
    assert limited == ["2", "lru", "512", "2", "0.3333", "0.3333", "0.3333"]
    assert unlimited == ["unlimited", "lru", "512", "3", "0.5000", "0.5000", "0.5000"]


def test_several_traces_are_kept_apart(trace: Path, tmp_path: Path) -> None:
    """Each has its own rows and its own cache."""
    other = write_mooncake(tmp_path / "other.jsonl", (0, 1))
    rows = result_of(tmp_path, trace, other)["results"]
    assert [(row["trace"], row["hit_blocks"]) for row in rows] == [(str(trace), 3), (str(other), 0)]


def test_capacities_may_be_in_bytes_of_a_model(trace: Path, tmp_path: Path) -> None:
    """By what a token takes, wherever the option stands; half a block is none."""
    by_size = ("--capacity", "1MiB,2MiB", "--kv-bytes-per-token", 1000)
    rows = result_of(tmp_path, trace, *by_size)["results"]
    assert [row["capacity_blocks"] for row in rows] == [2, 4]
    model = ("--model", "Llama-3.1-8B", "--kv-format", "bfloat16")
    row = one_row(tmp_path, trace, "--capacity", "1GiB", *model)
    assert row["capacity_blocks"] == 2**30 // (2 * 32 * 8 * 128 * 2) // 512


def test_a_warm_up_may_be_a_share(trace: Path, tmp_path: Path) -> None:
    """A third of three requests is one; the trace is counted first."""
    for amount in ("1", "34%"):
        row = one_row(tmp_path, trace, "--warm-up", amount)
        assert row["warm_up_requests"] == 1
        assert row["after_warm_up"]["requests"] == 2
        assert row["requests"] == 3


def test_text_is_tokenized_by_the_given_folder(tmp_path: Path) -> None:
    """The report tells which tokens it counted."""
    write_chat_tokenizer(tmp_path / "model")
    path = write_lines(tmp_path / "a.jsonl", {"messages": [{"role": "user", "content": "hi"}]})
    result = result_of(tmp_path, path, "--tokenizer", tmp_path / "model")
    assert "of the given tokenizer" in result["traces"][0]["tokenizer"]
    n_real = result["results"][0]["tokens"]
    standing_in = result_of(tmp_path, path)
    assert "stand-in" in standing_in["traces"][0]["tokenizer"]
    assert standing_in["results"][0]["tokens"] != n_real


@pytest.mark.parametrize(("seconds", "hit_blocks"), [(None, 1), ("0.5", 1), ("2.5", 0)])
def test_running_requests_hold_their_blocks(
    tmp_path: Path, seconds: str | None, hit_blocks: int
) -> None:
    """What runs holds its prompt and one block more, of four here.

    One after another (4) makes only 2 give way, and (1 2) finds 1. With 2.5 seconds each, (1 2)
    ends at 2.5; then (3) and (4) start, need two blocks each, and both 1 and 2 give way.
    """
    path = write_mooncake(tmp_path / "overlap.jsonl", (1, 2), (3,), (4,), (1, 2))
    options = () if seconds is None else ("--running-seconds", seconds)
    row = one_row(tmp_path, path, "--capacity", 3, *options)
    assert row["hit_blocks"] == hit_blocks
    assert row.get("running_seconds") == (None if seconds is None else float(seconds))
    assert row.get("requests_without_duration") == (None if seconds is None else 0)


def test_requests_run_as_long_as_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first runs for 9 s, so (6) has to spare its second block. The others are over at once."""
    prompts = ((1, 2), (3,), (4, 5), (6,), (1, 2))
    entries = [
        {"t": second, "type": "n", "in": 64 * len(ids), "out": 1, "hash_ids": ids}
        for second, ids in enumerate(prompts)
    ]
    entries[0]["api_time"] = 9.0
    path = tmp_path / "weka.json"
    path.write_text(json.dumps({"id": "a", "block_size": 64, "requests": entries}))
    assert one_row(tmp_path, path, "--capacity", 5)["hit_blocks"] == 1
    capsys.readouterr()
    row = one_row(tmp_path, path, "--capacity", 5, "--running-seconds", "measured")
    assert (row["hit_blocks"], row["running_seconds"]) == (2, "measured")
    assert row["requests_without_duration"] == 4
    assert "requests without duration 4" in capsys.readouterr().out


def test_tenants_are_not_mixed_with_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the first request has no tenant, later ones would share what they must not."""
    row = {"messages": [{"role": "user", "content": "hi"}]}
    path = write_lines(tmp_path / "a.jsonl", row, row | {"tenant": "a"}, row | {"tenant": "b"})
    assert run(path) == 2
    assert "name all, or say shared" in capsys.readouterr().err
    assert run(path, "--tenants", "shared") == 0


def test_overlap_needs_tenants_that_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told what to say; with that it runs."""
    row = {"messages": [{"role": "user", "content": "hi"}], "tenant": "a"}
    path = write_lines(tmp_path / "a.jsonl", row)
    assert run(path, "--running-seconds", 1) == 2
    assert "say --tenants shared" in capsys.readouterr().err
    assert run(path, "--running-seconds", 1, "--tenants", "shared") == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--capacity", "0"), "'0': must be blocks (10000), tokens (160000tokens) or 'unlimited'"),
        (("--capacity", "10tokens"), "less than one of the trace's blocks of 512"),
        (("--capacity", "1GiB"), "'1GiB' is in bytes; say --model, or --kv-bytes-per-token"),
        (("--capacity", "1GiB", "--model", "no-such"), "is no folder with a config.json"),
        (("--capacity", "GiB"), "use a number and a unit"),
        (("--policy", "lru,mru"), "'mru' is none of lru, cost-aware"),
        (("--format", "csv"), "must be one of mooncake"),
        (("--block-tokens", "700"), "a multiple of the trace's own 512"),
        (("--block-tokens", "x"), "'x' is no number above 0"),
        (("--running-seconds", "-1"), "'-1' is neither seconds nor 'measured'"),
        (("--running-seconds", "soon"), "'soon' is neither seconds nor 'measured'"),
        (("--running-seconds", "measured"), "the trace tells of no request how long it ran"),
        (("--running-seconds", "1", "--replicas", "2"), "goes with one cache with one tier"),
        (("--running-seconds", "1", "--policy", "belady"), "that run one after another"),
        (("--warm-up", "100%"), "a share below 100%"),
        (("--speed", "0"), "speed = 0.0: must be a number above 0"),
        (("--speed", "inf"), "speed = inf"),
        (("--max-gap", "nan"), "max_gap_seconds = nan"),
        (("--tokenizer", "."), "no readable tokenizer.json"),
        (("--json", "/nowhere/result.json"), "No such file or directory"),
    ],
)
def test_bad_options_are_one_line(
    trace: Path, options: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and the reason on standard error."""
    assert run(trace, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line


def test_a_trace_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and its name."""
    assert run("/nowhere/at-all.jsonl") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "/nowhere/at-all.jsonl, the file: there is no such file or folder" in line


def test_skipped_rows_are_named_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first five on standard error, all in the count; none with `--strict`."""
    path = write_lines(tmp_path / "a.jsonl", mooncake(1), *["{"] * 7)
    trace = one_trace(tmp_path, path)
    assert (trace["rows_read"], trace["rows_used"], trace["rows_skipped"]) == (8, 1, 7)
    assert [row["line"] for row in trace["skipped"]] == [2, 3, 4, 5, 6, 7, 8]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith(f"{path}, line 2: skipped: ")
    assert lines[-1] == f"{path}: 2 more rows were skipped"
    assert run(path, "--strict") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{path}, line 2: " in line


@needs_cases
def test_tr01_more_ids_than_tokens(tmp_path: Path) -> None:
    """The row is skipped with its line and both numbers; nothing is padded."""
    result = result_of(tmp_path, case_file("TR01.jsonl"))
    assert result["results"][0]["tokens"] == 25
    (skipped,) = result["traces"][0]["skipped"]
    assert skipped["line"] == 2
    assert "20 tokens has 1 blocks" in skipped["reason"]
    assert "2 hash ids" in skipped["reason"]


@needs_cases
def test_tr04_no_timestamp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows without one, or with null, text or NaN, are told by line and value."""
    trace = one_trace(tmp_path, case_file("TR04.jsonl"))
    assert [row["line"] for row in trace["skipped"]] == [2, 3, 4, 5]
    reasons = [row["reason"] for row in trace["skipped"]]
    for reason, part in zip(reasons, ("null", "no timestamp", '"12"', "NaN"), strict=True):
        assert part in reason
    assert run(case_file("TR04.jsonl"), "--strict") == 2
    assert "line 2: " in capsys.readouterr().err.splitlines()[-1]


@needs_cases
def test_tr05_negative_timestamps(tmp_path: Path) -> None:
    """Times count from the earliest row."""
    trace = one_trace(tmp_path, case_file("TR05.jsonl"))
    assert (trace["earliest_seconds"], trace["span_seconds"]) == (-0.5, 0.6)
    assert trace["rows_used"] == 3


@needs_cases
def test_tr06_wall_clock_times(tmp_path: Path) -> None:
    """Gaps are as in the trace, the unit is an option and in the report."""
    trace = one_trace(tmp_path, case_file("TR06.jsonl"))
    assert (trace["time_unit"], trace["span_seconds"]) == ("ms", 0.5)
    in_seconds = one_trace(tmp_path, case_file("TR06.jsonl"), "--time-unit", "s")
    assert (in_seconds["time_unit"], in_seconds["span_seconds"]) == ("s", 500)


@needs_cases
def test_tr08_all_rows_are_used(tmp_path: Path) -> None:
    """Without any option."""
    trace = one_trace(tmp_path, case_file("TR08.jsonl"))
    assert (trace["rows_read"], trace["rows_used"], trace["rows_skipped"]) == (12, 12, 0)
    assert one_row(tmp_path, case_file("TR08.jsonl"))["hit_blocks"] == 8


@needs_cases
def test_tr13_tails_go_first(tmp_path: Path) -> None:
    """The third row still has two of its three blocks."""
    assert one_row(tmp_path, case_file("TR13.jsonl"), "--capacity", 3)["hit_blocks"] == 2


@needs_cases
def test_tr14_inconsistent_ids(tmp_path: Path) -> None:
    """A block after another prefix is no hit, repeats are chained, and such rows are counted."""
    trace = one_trace(tmp_path, case_file("TR14.jsonl"))
    assert (trace["inconsistent_rows"], trace["inconsistent_at"]) == (3, [2, 3, 4])
    assert one_row(tmp_path, case_file("TR14.jsonl"))["hit_blocks"] == 2


@needs_cases
def test_tr16_options_combine(tmp_path: Path) -> None:
    """Gaps are cut before the speed counts; what a row lacks has its default."""
    path = case_file("TR16.jsonl")
    result = result_of(tmp_path, path, "--speed", 10, "--max-gap", 5)
    (trace,) = result["traces"]
    assert trace["defaults"] == {"output_length": 1, "hash_ids": 1}
    assert trace["rows_used"] == 4
    (row,) = result["results"]
    assert row["hit_blocks"] == 2  # of the rows with ids
    assert row["over_time"]["start_seconds"] == [
        0
    ]  # 0.5 s from the first row to the second, with the gap cut


@needs_traces
def test_a_file_and_a_folder_of_the_public_traces(tmp_path: Path) -> None:
    """Both WEKA's conversations at once and Azure's table, which shares nothing."""
    rows = result_of(tmp_path, traces_folder() / "weka", traces_folder() / "azure")["results"]
    assert rows[0]["hit_blocks"] > 0
    assert rows[1]["hit_blocks"] == 0
