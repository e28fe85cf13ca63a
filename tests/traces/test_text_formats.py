"""Traces with text: their prompts as blocks of tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefixcache.errors import TraceError
from prefixcache.text import PromptEncoder
from prefixcache.traces import ReadOptions, open_trace, read_trace
from prefixcache.traces.formats.arrays import read_array
from tests.support.tokenizers import write_chat_tokenizer
from tests.support.traces import write_lines

SYSTEM = {"role": "system", "content": "Answer at once, and in as few words as you can."}
HELLO = {"role": "user", "content": "hello"}
HI = {"role": "assistant", "content": "hi"}
AGAIN = {"role": "user", "content": "again"}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> PromptEncoder:
    folder = tmp_path_factory.mktemp("model")
    write_chat_tokenizer(folder)
    return PromptEncoder.load(folder)


def test_chat_bodies_are_found_where_logs_have_them(tmp_path: Path) -> None:
    """Bare, under `body` or under `request`; what stands beside them is read."""
    rows = [
        {"messages": [HELLO], "model": "m", "timestamp": 10},
        {"body": {"messages": [HELLO], "model": "m"}, "timestamp": 11, "session_id": 4},
        {"request": {"messages": [HELLO]}, "timestamp": 12, "usage": {"completion_tokens": 9}},
        {"messages": [HELLO], "timestamp": 13, "tenant": "a", "output_length": 2},
    ]
    requests = read_trace(write_lines(tmp_path / "a.jsonl", *rows))
    assert [request.timestamp_seconds for request in requests] == [0, 1, 2, 3]
    assert [request.output_tokens for request in requests] == [0, 0, 9, 2]
    assert [request.model for request in requests] == ["m", "m", None, None]
    assert [request.conversation for request in requests] == [None, "4", None, None]
    assert [request.tenant for request in requests] == [None, None, None, "a"]
    assert len({request.hash_ids for request in requests}) == 1


def test_chats_are_tokenized_as_the_server_would(tmp_path: Path, encoder: PromptEncoder) -> None:
    """With a tokenizer and template a prompt has the server's own tokens, cut into blocks."""
    path = write_lines(tmp_path / "a.jsonl", {"messages": [SYSTEM, HELLO]}, {"messages": [SYSTEM]})
    options = ReadOptions(encoder=encoder, block_tokens=4)
    first, second = read_trace(path, options=options)
    ids, shorter = encoder.chat([SYSTEM, HELLO]), encoder.chat([SYSTEM])
    assert (first.input_tokens, second.input_tokens) == (len(ids), len(shorter))
    assert len(first.hash_ids) == len(ids) // 4
    n_shared = next(i for i, (a, b) in enumerate(zip(ids, shorter, strict=False)) if a != b)
    n_equal = sum(a == b for a, b in zip(first.hash_ids, second.hash_ids, strict=False))
    assert n_equal == n_shared // 4 > 0


def test_a_turn_begins_as_the_one_before(tmp_path: Path) -> None:
    """The stand-in keeps prefixes; but for the last token, which may be cut, all comes again."""
    path = write_lines(
        tmp_path / "a.jsonl",
        {"messages": [SYSTEM, HELLO]},
        {"messages": [SYSTEM, HELLO, HI, AGAIN]},
    )
    first, second = read_trace(path, options=ReadOptions(block_tokens=4))
    n_whole = (first.input_tokens - 1) // 4
    assert n_whole > 1
    assert second.hash_ids[:n_whole] == first.hash_ids[:n_whole]


def test_equal_texts_of_two_files_are_one_prefix(tmp_path: Path) -> None:
    """Text means the same wherever it stands."""
    write_lines(tmp_path / "a.jsonl", {"messages": [SYSTEM, HELLO], "timestamp": 1})
    write_lines(tmp_path / "b.jsonl", {"messages": [SYSTEM, HELLO], "timestamp": 0})
    first, second = read_trace(tmp_path)
    assert first.hash_ids == second.hash_ids


def test_what_a_log_lacks_is_named_and_no_text_is_shown(tmp_path: Path) -> None:
    """A row at fault is told by its line, never by what it says."""
    rows = [{"messages": [HELLO]}, {"body": {"messages": "secret"}}, {"prompt": "secret"}]
    path = write_lines(tmp_path / "a.jsonl", *rows)
    reading = open_trace(str(path)).read()
    assert len(list(reading)) == 1
    assert [row.line for row in reading.report.skipped] == [2, 3]
    assert "secret" not in str(reading.report)


def test_a_chat_that_the_template_refuses_is_a_bad_row(
    tmp_path: Path, encoder: PromptEncoder
) -> None:
    """The reason is the template's."""
    path = write_lines(
        tmp_path / "a.jsonl", {"messages": [HELLO]}, {"messages": [{"role": "king"}]}
    )
    with pytest.raises(TraceError, match=r"line 2: .*role 'king' is unknown"):
        read_trace(path, options=ReadOptions(encoder=encoder, strict=True))


def test_agent_logs_are_plain_text(tmp_path: Path) -> None:
    """Microseconds turn into seconds; the output is counted in tokens too."""
    row = {"timestamp": 5_000_000, "input": "x" * 100, "output": "y" * 8, "session_id": "s"}
    path = write_lines(tmp_path / "a.jsonl", row, {**row, "timestamp": 6_500_000})
    first, second = read_trace(path)
    assert (second.timestamp_seconds, first.input_tokens, first.output_tokens) == (1.5, 25, 2)
    assert first.hash_ids == second.hash_ids
    assert len(first.hash_ids) == 1
    assert first.conversation == "s"


def test_each_answer_of_a_sharegpt_conversation_is_a_request(tmp_path: Path) -> None:
    """Its prompt is all that was said before; nobody's time is known."""
    turns = [("human", "hello" * 20), ("gpt", "hi"), ("human", "more"), ("gpt", "so")]
    conversation = {
        "id": "c",
        "conversations": [{"from": who, "value": text} for who, text in turns],
    }
    path = tmp_path / "a.json"
    path.write_text(json.dumps([conversation, {"id": "d", "conversations": []}]), encoding="utf-8")
    reading = open_trace(str(path)).read()
    first, second = list(reading)
    assert (reading.report.rows_read, reading.report.is_timed) == (2, False)
    assert (first.conversation, second.conversation) == ("c", "c")
    assert (first.timestamp_seconds, second.timestamp_seconds) == (0, 1)
    assert second.hash_ids[: len(first.hash_ids)] == first.hash_ids
    assert second.input_tokens > first.input_tokens


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_is_read_object_by_object(tmp_path: Path, indent: int | None) -> None:
    """However it is laid out and wherever the chunks of the file end."""
    items = [{"id": n, "text": "ü]},{" * n} for n in range(50)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(items, indent=indent, ensure_ascii=False), encoding="utf-8")
    found = [json.loads(item) for item in read_array(path, chunk_bytes=7)]
    assert found == items


@pytest.mark.parametrize("text", ["{}", "[{}", '[{"a": ]'])
def test_an_array_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """The error names the file."""
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=r"a\.json, the file"):
        list(read_array(path))
