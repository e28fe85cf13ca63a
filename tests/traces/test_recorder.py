"""A gateway's own recordings: what is written, what comes back, and what is never in them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from prefixcache.errors import ConfigError, TraceError
from prefixcache.index import pack
from prefixcache.traces import TraceWriter, read_trace

KEY = b"k" * 16


def record(
    path: Path, *prompts: list[int], key: bytes = KEY, mode: str = "wb", **more: object
) -> Path:
    """Write a request a second of tenant `acme` with `prompts` in blocks of four tokens."""
    with path.open(mode) as file:
        assert isinstance(file, io.BufferedWriter)
        writer = TraceWriter(file, key=key, block_tokens=4)
        for second, prompt in enumerate(prompts):
            fields = {"tenant": "acme", "model": "tiny", "output_tokens": 5, "cached_tokens": 4}
            fields |= {"timestamp_seconds": 1e9 + second, "prompt": pack(prompt), **more}
            writer.write(**fields)  # type: ignore[arg-type]
    return path


def test_what_is_recorded_is_read(tmp_path: Path) -> None:
    """Times, lengths and hits as they were; prompts that begin alike have leading ids in common."""
    path = record(tmp_path / "a.jsonl", [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 9])
    first, second = read_trace(path)
    assert [first.timestamp_seconds, second.timestamp_seconds] == [0, 1]
    assert (first.input_tokens, first.output_tokens, first.cached_tokens) == (9, 5, 4)
    assert (first.block_tokens, first.model) == (4, "tiny")
    assert len(first.hash_ids) == len(second.hash_ids) == 2
    assert first.hash_ids[0] == second.hash_ids[0]
    assert first.hash_ids[1] != second.hash_ids[1]


def test_an_id_stands_for_all_before_it(tmp_path: Path) -> None:
    """Equal blocks after different ones have different ids."""
    path = record(tmp_path / "a.jsonl", [1, 1, 1, 1, 7, 7, 7, 7], [2, 2, 2, 2, 7, 7, 7, 7])
    first, second = read_trace(path)
    assert not set(first.hash_ids) & set(second.hash_ids)


def test_models_share_nothing_and_tenants_the_ids(tmp_path: Path) -> None:
    """KV is a model's own; whether tenants may share is for the replay to ask."""
    prompt = [1, 2, 3, 4]
    mine = record(tmp_path / "a.jsonl", prompt)
    other_model = record(tmp_path / "b.jsonl", prompt, model="large")
    other_tenant = record(tmp_path / "c.jsonl", prompt, tenant="umbrella")
    (a,), (b,), (c,) = map(read_trace, (mine, other_model, other_tenant))
    assert a.hash_ids == c.hash_ids != b.hash_ids
    assert a.tenant == b.tenant != c.tenant


def test_nothing_can_be_told_without_the_key(tmp_path: Path) -> None:
    """Neither names nor tokens are in the file, and another key gives other digests."""
    prompt = [31_337, 31_338, 31_339, 31_340]
    path = record(tmp_path / "a.jsonl", prompt)
    text = path.read_text()
    assert "acme" not in text
    assert not any(str(token) in text for token in prompt)
    (other,) = read_trace(record(tmp_path / "b.jsonl", prompt, key=b"j" * 16))
    (own,) = read_trace(path)
    assert own.hash_ids != other.hash_ids
    assert own.tenant != other.tenant


def test_the_header_tells_which_recordings_go_together(tmp_path: Path) -> None:
    """By a digest of the key, which does not tell the key."""
    lines = [
        record(tmp_path / name, key=key).read_text().splitlines()[0]
        for name, key in (("a.jsonl", KEY), ("b.jsonl", KEY), ("c.jsonl", b"j" * 16))
    ]
    a, b, c = (json.loads(line)["key_id"] for line in lines)
    assert a == b != c
    assert KEY.hex() not in a


def test_a_recording_may_be_gone_on_with(tmp_path: Path) -> None:
    """Another header in the middle begins another run; files of a folder share their ids."""
    (tmp_path / "runs").mkdir()
    path = record(tmp_path / "runs" / "a.jsonl", [1, 2, 3, 4])
    record(path, [1, 2, 3, 4], mode="ab", timestamp_seconds=2e9)
    record(tmp_path / "runs" / "b.jsonl", [1, 2, 3, 4], timestamp_seconds=1.5e9)
    requests = read_trace(tmp_path / "runs")
    assert [request.timestamp_seconds for request in requests] == [0, 0.5e9, 1e9]
    assert len({request.hash_ids for request in requests}) == 1


def test_a_line_that_was_cut_off_is_a_bad_row(tmp_path: Path) -> None:
    """A server may die while it writes."""
    path = record(tmp_path / "a.jsonl", [1, 2, 3, 4], [1, 2, 3, 4])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError, match="line 3"):
        read_trace(path)


def test_a_header_that_cannot_be_read_is_no_header(tmp_path: Path) -> None:
    """However deep it is nested."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"format": "prefixcache-recording", "version": ' + "[" * 5000 + "\n")
    with pytest.raises(TraceError, match="line 1: a recording begins with a header"):
        read_trace(path)


def test_headers_are_checked(tmp_path: Path) -> None:
    """There is one, and this program knows its version."""
    path = record(tmp_path / "a.jsonl", [1, 2, 3, 4])
    header, row = path.read_text().splitlines()
    path.write_text(f"{row}\n{header}\n")
    with pytest.raises(TraceError, match="line 1: a recording begins with a header"):
        read_trace(path, format="recording")
    path.write_text(header.replace('"version":1', '"version":2'))
    with pytest.raises(TraceError, match="version 2 of the format; this program reads 1"):
        read_trace(path)


@pytest.mark.parametrize(
    ("key", "block_tokens", "reason"),
    [(b"k" * 15, 16, "16 to 64 bytes"), (b"k" * 65, 16, "16 to 64 bytes"), (KEY, 0, "at least 1")],
)
def test_a_writer_refuses_what_cannot_work(key: bytes, block_tokens: int, reason: str) -> None:
    """A short key could be guessed."""
    with pytest.raises(ConfigError, match=reason):
        TraceWriter(io.BytesIO(), key=key, block_tokens=block_tokens)
