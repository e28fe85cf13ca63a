"""What all formats have in common: files, times, ids, and rows that cannot be used."""

from __future__ import annotations

import gzip
import sys
from importlib import import_module
from pathlib import Path

import pytest

from prefixcache.errors import ConfigError, TraceError
from prefixcache.traces import (
    Pacing,
    ReadOptions,
    TraceReading,
    TraceRequest,
    open_trace,
    read_trace,
)
from prefixcache.traces.files import find_files
from prefixcache.traces.pacing import PacedClock
from prefixcache.traces.prefix_ids import PrefixIds, coarser, tenants_apart
from tests.support.traces import mooncake, write_lines, write_mooncake

zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def opened(path: Path | str, **options: object) -> TraceReading:
    return open_trace(str(path), options=ReadOptions(**options)).read()  # type: ignore[arg-type]


def seconds(path: Path | str, **options: object) -> list[float]:
    return [request.timestamp_seconds for request in opened(path, **options)]


@pytest.mark.parametrize("ending", [".gz", ".zst", ""])
def test_compressed_files_are_told_by_their_bytes(tmp_path: Path, ending: str) -> None:
    """Whatever they are called."""
    plain = write_mooncake(tmp_path / "a.jsonl", (1, 2), (1, 3))
    for name, compress in (("gzip", gzip.compress), ("zstd", zstd.compress)):
        packed = tmp_path / f"{name}.jsonl{ending}"
        packed.write_bytes(compress(plain.read_bytes()))
        assert read_trace(packed) == read_trace(plain)


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress])
def test_damaged_files_are_errors(tmp_path: Path, compress: object) -> None:
    """Half of a compressed file, or one with a byte that is wrong."""
    assert callable(compress)
    rows = [mooncake(n, at_ms=n * 7919 % 1009) for n in range(2000)]
    data = compress(write_lines(tmp_path / "a.jsonl", *rows).read_bytes())
    path = tmp_path / "b.jsonl"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(TraceError, match="the compressed data is damaged"):
        list(open_trace(str(path), format="mooncake").read())
    path.write_bytes(data[:-200] + bytes(b ^ 0xFF for b in data[-200:-100]) + data[-100:])
    with pytest.raises(TraceError, match=r"damaged|Not a gzipped|CRC"):
        list(open_trace(str(path), format="mooncake").read())


def test_a_byte_order_mark_and_carriage_returns_do_no_harm(tmp_path: Path) -> None:
    """Files come from all kinds of machines."""
    path = write_mooncake(tmp_path / "a.jsonl", (1,), (2,))
    expected = read_trace(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_trace(path) == expected


def test_a_folder_is_one_trace_and_so_is_a_pattern(tmp_path: Path) -> None:
    """Files are merged by arrival; equal ids of two traces are different prefixes."""
    (tmp_path / "deep").mkdir()
    write_lines(tmp_path / "b.jsonl", mooncake(1, at_ms=0), mooncake(1, at_ms=2000))
    write_lines(tmp_path / "deep" / "a.jsonl", mooncake(1, at_ms=1000))
    (tmp_path / ".hidden.jsonl").touch()
    (tmp_path / "README.md").touch()
    trace = open_trace(str(tmp_path))
    requests = list(trace.read())
    assert [request.timestamp_seconds for request in requests] == [0, 1, 2]
    assert requests[0].hash_ids == requests[2].hash_ids != requests[1].hash_ids
    assert trace.ignored_files == (tmp_path / "README.md",)
    assert seconds(tmp_path / "**" / "*.jsonl") == [0, 1, 2]
    assert seconds(tmp_path / "*.jsonl") == [0, 2]


def test_files_are_found_by_their_endings(tmp_path: Path) -> None:
    """Compressed or not."""
    for name in ("a.jsonl.gz", "b.csv.zst", "c.json", "d.txt", "e.gz"):
        (tmp_path / name).touch()
    found, ignored = find_files(str(tmp_path))
    assert [file.name for file in found] == ["a.jsonl.gz", "b.csv.zst", "c.json"]
    assert [file.name for file in ignored] == ["d.txt", "e.gz"]


def test_rows_keep_their_order_unless_asked(tmp_path: Path) -> None:
    """A row that arrived before the one in front of it is counted; sorting is by arrival."""
    path = write_lines(tmp_path / "a.jsonl", *[mooncake(1, at_ms=ms) for ms in (1000, 500, 3000)])
    reading = opened(path)
    assert [request.timestamp_seconds for request in reading] == [0, -0.5, 2]
    assert (reading.report.rows_out_of_order, reading.report.earliest_seconds) == (1, 0.5)
    assert seconds(path, sort=True) == [0, 0.5, 2.5]
    assert [request.timestamp_seconds for request in read_trace(path)] == [0, 0.5, 2.5]


def test_the_first_row_decides_whether_there_are_times(tmp_path: Path) -> None:
    """Without any, requests come a second apart; a mixture is at fault, whichever way."""
    bare = {"input_length": 512, "hash_ids": [1]}
    untimed = write_lines(tmp_path / "a.jsonl", bare, bare, mooncake(1), bare)
    reading = opened(untimed)
    assert [request.timestamp_seconds for request in reading] == [0, 1, 2]
    assert not reading.report.is_timed
    assert [row.line for row in reading.report.skipped] == [3]
    timed = opened(write_lines(tmp_path / "b.jsonl", mooncake(1), bare))
    assert len(list(timed)) == 1
    assert "it has no timestamp, but rows before it have" in timed.report.skipped[0].reason


def test_the_unit_of_timestamps_is_an_option(tmp_path: Path) -> None:
    """The format's own is shown in the report."""
    path = write_lines(tmp_path / "a.jsonl", mooncake(1, at_ms=0), mooncake(1, at_ms=3000))
    assert [seconds(path, time_unit=unit)[1] for unit in ("s", "ms", "us")] == [3000, 3, 0.003]
    assert opened(path).time_unit == "ms"
    with pytest.raises(ConfigError, match="time_unit = 'min'"):
        ReadOptions(time_unit="min")


def test_an_id_after_two_others_is_two_prefixes(tmp_path: Path) -> None:
    """Such rows are counted; equal ones among them are still equal."""
    rows = [(7, 8), (9, 8), (5, 5), (5, 5), (9, 8), (7, 8)]
    reading = opened(write_mooncake(tmp_path / "a.jsonl", *rows))
    a, b, c, d, b_again, a_again = (request.hash_ids for request in reading)
    assert a == a_again == (7, 8)
    assert b == b_again
    assert b[0] == 9
    assert b[1] != 8
    assert c == d
    assert c[0] == 5 != c[1]
    assert (reading.report.inconsistent_rows, reading.report.inconsistent_at) == (4, [2, 3, 4, 5])


def test_parents_are_remembered_within_bounds() -> None:
    """What was seen long ago may be forgotten; the newest is known."""
    known = PrefixIds(most_known=4)
    for id in range(0, 20, 2):
        assert known.consistent((id, id + 1)) == (id, id + 1)
    assert known.consistent((50, 19)) != (50, 19)
    assert known.consistent((50, 1)) == (50, 1)


def test_rows_without_ids_share_nothing(tmp_path: Path) -> None:
    """Each of their blocks takes room and is nobody else's."""
    bare = {"timestamp": 0, "input_length": 600}
    reading = opened(write_lines(tmp_path / "a.jsonl", bare, bare))
    first, second = (request.hash_ids for request in reading)
    assert len({*first, *second}) == 4
    assert reading.report.defaults == {"hash_ids": 2, "output_length": 2}


def test_coarser_blocks_are_those_of_the_prefix() -> None:
    """A block of several is known by the last of them; a part of one counts if it has an id."""
    assert coarser((1, 2, 3, 4, 5), 2, has_partial=True) == (2, 4, 5)
    assert coarser((1, 2, 3, 4, 5), 2, has_partial=False) == (2, 4)
    assert coarser((1, 2, 3, 4), 2, has_partial=True) == (2, 4)
    assert coarser((), 2, has_partial=True) == ()


def test_tenants_can_be_set_apart() -> None:
    """Each has ids of its own, the same ones each time; who has no tenant keeps his."""
    a, b, nobody = (TraceRequest(0.0, 8, 1, (1, 2), 4, tenant=name) for name in ("a", "b", None))
    assert tenants_apart(a) == tenants_apart(a)
    assert len({*tenants_apart(a).hash_ids, *tenants_apart(b).hash_ids, 1, 2}) == 6
    assert tenants_apart(nobody) is nobody


def test_gaps_are_cut_before_the_speed_counts() -> None:
    """Ten minutes become five seconds of the trace, and half a second at ten times the speed."""
    clock = PacedClock(Pacing(speed=10, max_gap_seconds=5))
    assert [clock.seconds(at) for at in (100.0, 700.0, 701.0)] == [0, 0.5, pytest.approx(0.6)]


def test_a_row_out_of_order_makes_no_gap() -> None:
    """Time that went back is not counted twice."""
    clock = PacedClock(Pacing(max_gap_seconds=5))
    assert [clock.seconds(at) for at in (0.0, 4.0, 1.0, 6.0)] == [0, 4, 1, 6]


@pytest.mark.parametrize("speed", [-1, 0, float("inf"), float("nan")])
def test_a_speed_is_a_number_above_0(speed: float) -> None:
    """Nothing can be slept with any other."""
    with pytest.raises(ConfigError, match="speed"):
        Pacing(speed=speed)


@pytest.mark.parametrize("gap", [-1, 0, float("nan")])
def test_a_gap_is_longer_than_0(gap: float) -> None:
    """No limit is no number."""
    with pytest.raises(ConfigError, match="max_gap_seconds"):
        Pacing(max_gap_seconds=gap)


def test_a_trace_is_not_held(tmp_path: Path) -> None:
    """Nothing of a request is kept once it is through: reading asks for the next row alone."""
    path = write_mooncake(tmp_path / "a.jsonl", *[(n,) for n in range(100)])
    with path.open("a") as file:
        file.write("this row is never reached\n")
    reading = open_trace(str(path), options=ReadOptions(strict=True)).read()
    found = iter(reading)
    assert [next(found).hash_ids for _ in range(3)] == [(0,), (1,), (2,)]
    assert reading.report.rows_read == 3
