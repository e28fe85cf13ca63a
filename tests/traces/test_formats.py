"""Trace files, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefixcache.errors import TraceError
from prefixcache.traces import TraceRequest, read_mooncake, read_trace, read_weka

MOONCAKE = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 5]}
WEKA = {"t": 2.5, "type": "s", "in": 130, "out": 3, "hash_ids": [1, 2], "model": "m"}
SUBAGENT = {"t": 3, "type": "subagent"}


def write_lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def write_weka(path: Path, *requests: object, block_size: int = 64) -> Path:
    conversation = {"id": "a", "block_size": block_size, "requests": requests}
    path.write_text(json.dumps(conversation), encoding="utf-8")
    return path


def test_mooncake_rows_are_read_in_order(tmp_path: Path) -> None:
    """Milliseconds turn into seconds; the last block may be partial; blank lines are no rows."""
    later = {"timestamp": 2000, "input_length": 0, "output_length": 0, "hash_ids": []}
    path = write_lines(tmp_path / "a.jsonl", MOONCAKE, later)
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert list(read_mooncake(path)) == [
        TraceRequest(1.5, 600, 7, (0, 5), 512),
        TraceRequest(2.0, 0, 0, (), 512),
    ]


def test_weka_requests_are_read_with_those_of_subagents(tmp_path: Path) -> None:
    """All requests of a conversation come by arrival; a subagent's count from its own start."""
    inner = {"t": 1, "type": "n", "in": 64, "out": 1, "hash_ids": [9]}
    last = {"t": 2, "type": "s", "in": 0, "out": 1, "hash_ids": []}
    subagent = {**SUBAGENT, "requests": [last, inner]}
    path = write_weka(tmp_path / "a.json", subagent, WEKA)
    assert list(read_weka(path)) == [
        TraceRequest(2.5, 130, 3, (1, 2), 64),
        TraceRequest(4.0, 64, 1, (9,), 64),
        TraceRequest(5.0, 0, 1, (), 64),
    ]


def test_a_folder_is_its_conversations_at_once(tmp_path: Path) -> None:
    """Equal ids of two conversations are different prefixes, equal ids of one stay equal."""
    write_weka(tmp_path / "a.json", WEKA, {**WEKA, "t": 9})
    write_weka(tmp_path / "b.json", {**WEKA, "t": 7})
    a, b, a_again = read_trace(tmp_path)
    assert [a.timestamp_seconds, b.timestamp_seconds, a_again.timestamp_seconds] == [2.5, 7, 9]
    assert a.hash_ids == a_again.hash_ids
    assert not set(a.hash_ids) & set(b.hash_ids)


@pytest.mark.parametrize(
    "row",
    [
        "{",
        "[]",
        json.dumps({**MOONCAKE, "hash_ids": [0]}),
        json.dumps({**MOONCAKE, "hash_ids": [0, -1]}),
        json.dumps({**MOONCAKE, "hash_ids": [0, "5"]}),
        json.dumps({**MOONCAKE, "input_length": None}),
        json.dumps({**MOONCAKE, "timestamp": -1}),
        json.dumps({"timestamp": 1}),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, row: str) -> None:
    """The error tells the file and the line."""
    path = write_lines(tmp_path / "a.jsonl", MOONCAKE)
    path.write_text(path.read_text(encoding="utf-8") + row + "\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r"a\.jsonl, line 2: "):
        list(read_mooncake(path))


@pytest.mark.parametrize(
    "bad",
    [{"type": "s", "t": 1}, {**WEKA, "in": 64}, {**WEKA, "hash_ids": []}],
)
def test_a_malformed_request_is_named(tmp_path: Path, bad: object) -> None:
    """The error tells the file and the request, in a subagent too."""
    path = write_weka(tmp_path / "a.json", WEKA, {**SUBAGENT, "requests": [WEKA, bad]})
    with pytest.raises(TraceError, match=r"a\.json, request 2\.2: "):
        list(read_weka(path))


def test_a_file_of_another_shape_is_named(tmp_path: Path) -> None:
    """What is missing is told by its place in the file."""
    path = write_weka(tmp_path / "a.json", WEKA, {"type": "s", "in": 0})
    with pytest.raises(TraceError, match=r"a\.json, the file: .*`t`.*requests"):
        list(read_weka(path))


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    """Unreadable, empty, of no known kind, or of kinds that do not go together."""
    (tmp_path / "a.csv").touch()
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "bad.json").write_bytes(b"\xff")
    (tmp_path / "mixed").mkdir()
    write_weka(tmp_path / "mixed" / "a.json", WEKA)
    write_weka(tmp_path / "mixed" / "b.json", {**WEKA, "hash_ids": [1]}, block_size=128)
    (tmp_path / "none").mkdir()
    reasons = {
        "a.csv": "must end in",
        "a.jsonl": "holds no requests",
        "bad.json": "the file: ",
        "gone.jsonl": "No such file",
        "mixed": "differ in block_size",
        "none": "holds no requests",
    }
    for name, reason in reasons.items():
        with pytest.raises(TraceError, match=reason):
            read_trace(tmp_path / name)
