"""Trace files of block ids: what is read from them, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefixcache.errors import TraceError
from prefixcache.traces import ReadOptions, TraceReading, TraceRequest, open_trace, read_trace
from tests.support.traces import mooncake, traces_folder, write_lines
from tests.traces.public import needs_traces

MOONCAKE = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 5]}
QWEN = {
    "chat_id": 1,
    "parent_chat_id": -1,
    "timestamp": 2.5,
    "input_length": 20,
    "output_length": 3,
    "type": "text",
    "turn": 1,
    "hash_ids": [7, 8],
}
WEKA = {"t": 2.5, "type": "s", "in": 130, "out": 3, "hash_ids": [1, 2], "model": "m"}
SUBAGENT = {"t": 3, "type": "subagent"}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
)


def write_weka(path: Path, *requests: object, block_size: int = 64) -> Path:
    conversation = {"id": path.stem, "block_size": block_size, "requests": requests}
    path.write_text(json.dumps(conversation), encoding="utf-8")
    return path


def opened(path: Path, **options: object) -> tuple[list[TraceRequest], TraceReading]:
    reading = open_trace(str(path), options=ReadOptions(**options)).read()  # type: ignore[arg-type]
    return list(reading), reading


def test_mooncake_rows_are_read_in_order(tmp_path: Path) -> None:
    """Times count from the first row; the last block may be partial; blank lines are no rows."""
    later = {"timestamp": 2000, "input_length": 0, "output_length": 0, "hash_ids": []}
    path = write_lines(tmp_path / "a.jsonl", MOONCAKE, "", later)
    requests, reading = opened(path)
    assert requests == [
        TraceRequest(0.0, 600, 7, (0, 5), 512),
        TraceRequest(0.5, 0, 0, (), 512),
    ]
    assert (reading.report.rows_read, reading.report.rows_used) == (2, 2)
    assert (reading.time_unit, reading.report.first_seconds) == ("ms", 1.5)


def test_sessions_of_mooncake_rows_are_conversations(tmp_path: Path) -> None:
    """Some tools write one beside the ids."""
    path = write_lines(tmp_path / "a.jsonl", {**MOONCAKE, "session_id": 3}, MOONCAKE)
    assert [request.conversation for request in read_trace(path)] == ["3", None]


def test_qwen_chats_are_followed_to_their_roots(tmp_path: Path) -> None:
    """A row's conversation is that of its parent; unknown parents begin one."""
    rows = [
        QWEN,
        {**QWEN, "chat_id": 2, "parent_chat_id": 1},
        {**QWEN, "chat_id": 3, "parent_chat_id": 2},
        {**QWEN, "chat_id": 4, "parent_chat_id": 99},
    ]
    requests, _ = opened(write_lines(tmp_path / "a.jsonl", *rows))
    assert [request.conversation for request in requests] == ["1", "1", "1", "4"]
    assert {request.block_tokens for request in requests} == {16}


def test_qwen_ids_stand_for_their_block_alone(tmp_path: Path) -> None:
    """Equal ids after different ones are different prefixes; that is no inconsistency."""
    other = {**QWEN, "hash_ids": [9, 8]}
    requests, reading = opened(write_lines(tmp_path / "a.jsonl", QWEN, other, QWEN))
    first, second, third = (request.hash_ids for request in requests)
    assert first == third
    assert not set(first) & set(second)
    assert reading.report.inconsistent_rows == 0


def test_a_qwen_row_may_leave_its_partial_block_out(tmp_path: Path) -> None:
    """One id for 20 tokens of blocks of 16, or two; not three."""
    rows = [{**QWEN, "hash_ids": [7]}, QWEN, {**QWEN, "hash_ids": [7, 8, 9]}]
    requests, reading = opened(write_lines(tmp_path / "a.jsonl", *rows))
    assert [len(request.hash_ids) for request in requests] == [1, 2]
    assert [row.line for row in reading.report.skipped] == [3]


def test_weka_requests_are_read_with_those_of_subagents(tmp_path: Path) -> None:
    """All requests of a conversation come by arrival; a subagent's count from its own start."""
    inner = {"t": 1, "type": "n", "in": 64, "out": 1, "hash_ids": [9]}
    last = {"t": 2, "type": "s", "in": 0, "hash_ids": []}
    subagent = {**SUBAGENT, "requests": [last, inner]}
    path = write_weka(tmp_path / "a.json", subagent, WEKA)
    assert read_trace(path) == [
        TraceRequest(0.0, 130, 3, (1, 2), 64, "a", model="m"),
        TraceRequest(1.5, 64, 1, (9,), 64, "a"),
        TraceRequest(2.5, 0, 0, (), 64, "a"),
    ]


@pytest.mark.parametrize(
    ("told", "duration"),
    [(2.5, 2.5), (0, 0.0), (None, None), (-1, None), ("soon", None), ([1], None), (True, None)],
)
def test_how_long_a_weka_request_took(tmp_path: Path, told: object, duration: float | None) -> None:
    """What is no number of seconds is not known; the row is used all the same."""
    (request,) = read_trace(write_weka(tmp_path / "a.json", {**WEKA, "api_time": told}))
    assert request.duration_seconds == duration


def test_a_folder_is_its_conversations_at_once(tmp_path: Path) -> None:
    """Equal ids of two conversations are different prefixes, equal ids of one stay equal."""
    write_weka(tmp_path / "a.json", WEKA, {**WEKA, "t": 9})
    write_weka(tmp_path / "b.json", {**WEKA, "t": 7})
    a, b, a_again = read_trace(tmp_path)
    assert [a.timestamp_seconds, b.timestamp_seconds, a_again.timestamp_seconds] == [0, 4.5, 6.5]
    assert a.hash_ids == a_again.hash_ids
    assert not set(a.hash_ids) & set(b.hash_ids)


def test_azure_requests_share_nothing(tmp_path: Path) -> None:
    """Dates are times, however fine; each block has an id that no other one has."""
    rows = ["2023-11-16 18:17:03.9799600,40,10", "2023-11-16 18:17:04.9799600,16,8"]
    first, second = read_trace(write_lines(tmp_path / "a.csv", AZURE, *rows))
    assert (second.timestamp_seconds, second.input_tokens, second.output_tokens) == (1.0, 16, 8)
    assert len({*first.hash_ids, *second.hash_ids}) == 3 + 1


def test_azure_dates_may_have_a_zone(tmp_path: Path) -> None:
    """As those of 2024 do."""
    rows = ["2024-05-10 00:00:00.009930+00:00,40,10", "2024-05-10 02:00:00.009930+01:00,16,8"]
    _, second = read_trace(write_lines(tmp_path / "a.csv", AZURE, *rows))
    assert second.timestamp_seconds == pytest.approx(3600)


def test_burstgpt_sessions_are_conversations(tmp_path: Path) -> None:
    """Columns are found by name; the first releases had no sessions."""
    path = write_lines(tmp_path / "a.csv", BURST, "5,s1,43,GPT-4,100,46,146,Conversation log")
    (request,) = read_trace(path)
    assert (request.input_tokens, request.output_tokens) == (100, 46)
    assert request.duration_seconds == 43
    assert (request.conversation, request.model) == ("s1", "GPT-4")
    older = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    (request,) = read_trace(write_lines(tmp_path / "b.csv", older, "5,ChatGPT,9,0,9,API log"))
    assert (request.input_tokens, request.conversation) == (9, None)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("yesterday,1,1", "its time is 'yesterday'"),
        ("2023-11-16 18:17:04,-1,1", "ContextTokens is '-1'"),
        ("2023-11-16 18:17:04,1", "it has 2 cells, but the table 3 columns"),
        ("nan,1,1", "its timestamp is nan"),
    ],
)
def test_a_malformed_row_of_a_table_is_named(tmp_path: Path, row: str, reason: str) -> None:
    """The error tells the file, the line and what it found."""
    good = "2023-11-16 18:17:03,40,10"
    path = write_lines(tmp_path / "a.csv", AZURE, good, row)
    with pytest.raises(TraceError, match=rf"a\.csv, line 3: {reason}"):
        read_trace(path)


@pytest.mark.parametrize(
    "row",
    [
        "{",
        "[]",
        {**MOONCAKE, "hash_ids": [0]},
        {**MOONCAKE, "hash_ids": [0, -1]},
        {**MOONCAKE, "hash_ids": [0, "5"]},
        {**MOONCAKE, "input_length": None},
        {**MOONCAKE, "input_length": 2**40, "hash_ids": None},
        {**MOONCAKE, "timestamp": "1e999"},
        '{"timestamp": 1e999, "input_length": 0}',
        {"timestamp": 1},
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, row: object) -> None:
    """The error tells the file and the line; without `strict` the row is counted instead."""
    path = write_lines(tmp_path / "a.jsonl", MOONCAKE, row, MOONCAKE)
    with pytest.raises(TraceError, match=r"a\.jsonl, line 2: "):
        read_trace(path)
    requests, reading = opened(path)
    assert len(requests) == reading.report.rows_used == 2
    assert (reading.report.rows_read, reading.report.rows_skipped) == (3, 1)
    assert [row.line for row in reading.report.skipped] == [2]


@pytest.mark.parametrize(
    "bad",
    [{"type": "s", "t": 1}, {**WEKA, "in": 64}, {**WEKA, "hash_ids": []}, {"type": "s", "in": 0}],
)
def test_a_malformed_request_is_named(tmp_path: Path, bad: object) -> None:
    """The error tells the file and the request, in a subagent too."""
    path = write_weka(tmp_path / "a.json", WEKA, {**SUBAGENT, "requests": [WEKA, bad]})
    with pytest.raises(TraceError, match=r"a\.json, request 2\.2: "):
        read_trace(path)
    requests, reading = opened(path)
    assert len(requests) == 2
    assert [row.line for row in reading.report.skipped] == ["2.2"]


def test_subagents_nest_within_reason(tmp_path: Path) -> None:
    """What is deeper than anybody would go is counted as one row that cannot be used."""
    nested: object = WEKA
    for _ in range(60):
        nested = {**SUBAGENT, "requests": [nested]}
    requests, reading = opened(write_weka(tmp_path / "a.json", WEKA, nested))
    assert len(requests) == 1
    assert "nested over 50 deep" in reading.report.skipped[0].reason


@pytest.mark.parametrize("begin", [b'a\rb,"c', b"\xff,\xfe", b'"'])
def test_a_table_whose_first_line_is_none_is_refused(tmp_path: Path, begin: bytes) -> None:
    """It is one line of text."""
    path = tmp_path / "a.csv"
    path.write_bytes(begin + b"\n1,2\n")
    with pytest.raises(TraceError, match=r"a\.csv, line 1: "):
        read_trace(path, format="burstgpt")


def test_ids_of_64_bits_are_read(tmp_path: Path) -> None:
    """They may be digests; different ones stay different."""
    ids = [2**64 - 1, 2**63 + 5]
    (request,) = read_trace(write_lines(tmp_path / "a.jsonl", mooncake(*ids)))
    assert len(set(request.hash_ids)) == 2


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    """Unreadable, empty, of no known kind, or of kinds that do not go together."""
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "blank.jsonl").write_text("\n")
    (tmp_path / "bad.json").write_bytes(b"\xff")
    (tmp_path / "text.csv").write_text("to be or not to be")
    for folder in ("sizes", "kinds", "none"):
        (tmp_path / folder).mkdir()
    write_weka(tmp_path / "sizes" / "a.json", WEKA)
    write_weka(tmp_path / "sizes" / "b.json", {**WEKA, "hash_ids": [1]}, block_size=128)
    write_weka(tmp_path / "kinds" / "a.json", WEKA)
    write_lines(tmp_path / "kinds" / "b.jsonl", MOONCAKE)
    reasons = {
        "a.jsonl": "the file is empty",
        "blank.jsonl": "its format is not known; name one of mooncake",
        "bad.json": "its format is not known",
        "text.csv": "its format is not known",
        "gone.jsonl": "there is no such file",
        "sizes": "blocks of 64 and 128 tokens",
        "kinds": "is in the format mooncake, but .*a.json in weka",
        "none": "no file in it ends in",
    }
    for name, reason in reasons.items():
        with pytest.raises(TraceError, match=reason):
            read_trace(tmp_path / name)


def test_a_format_can_be_named(tmp_path: Path) -> None:
    """Whatever the file begins with; a table without its columns says which is missing."""
    path = write_lines(tmp_path / "a.txt", "when,how much", "1,2")
    with pytest.raises(TraceError, match="the column 'ContextTokens' is missing; found when"):
        read_trace(path, format="azure")


def test_a_trace_of_bad_rows_alone_says_why(tmp_path: Path) -> None:
    """The first reason stands in the error."""
    path = write_lines(tmp_path / "a.jsonl", {"input_length": "x"}, "{")
    with pytest.raises(TraceError, match=r"2 of 2 rows cannot be used; line 1: Expected `int`"):
        opened(path)


@needs_traces
@pytest.mark.parametrize(
    ("name", "format", "n_requests", "n_blocks", "n_tokens"),
    [
        ("conversation_trace.jsonl", "mooncake", 12_031, 288_500, 144_793_823),
        ("synthetic_trace.jsonl", "mooncake", 3_993, 121_877, 61_194_628),
        ("weka", "weka", 254, 273_046, 17_482_670),
        ("azure", "azure", 8_819, 1_132_803, 18_059_974),
        ("lmcache_agent", "lmcache-agent", 21, 1_317, 21_155),
    ],
)
def test_the_public_traces_are_told_and_read(
    name: str, format: str, n_requests: int, n_blocks: int, n_tokens: int
) -> None:
    """All of their rows can be used."""
    trace = open_trace(str(traces_folder() / name))
    reading = trace.read()
    requests = list(reading)
    assert trace.format.name == format
    assert reading.report.rows_skipped == reading.report.inconsistent_rows == 0
    assert len(requests) == n_requests
    assert sum(len(request.hash_ids) for request in requests) == n_blocks
    assert sum(request.input_tokens for request in requests) == n_tokens
