"""CSV traces without prefixes: BurstGPT and Azure. Their requests share nothing."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from prefixcache.errors import TraceError
from prefixcache.traces.files import read_lines
from prefixcache.traces.formats.rows import blocks_of, duration
from prefixcache.traces.reading import MAX_INPUT_TOKENS, Reading, RowError
from prefixcache.traces.records import TraceRequest

BLOCK_TOKENS = 16  # where no option says otherwise


class _Columns(NamedTuple):
    """What a table calls its columns."""

    timestamp: str
    input: str
    output: str
    session: str | None = None
    model: str | None = None
    duration: str | None = None  # in seconds


AZURE_COLUMNS = _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = _Columns(
    "Timestamp", "Request tokens", "Response tokens", "Session ID", "Model", "Elapsed time"
)


def read_azure(path: Path, reading: Reading) -> Iterator[TraceRequest]:
    """Yield the requests of an Azure LLM inference trace; times are dates.

    Source: github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and 2024.
    """
    return _read(path, reading, AZURE_COLUMNS)


def read_burstgpt(path: Path, reading: Reading) -> Iterator[TraceRequest]:
    """Yield the requests of a BurstGPT trace, with its sessions where it has them.

    Source: github.com/HPMLL/BurstGPT, README.
    """
    return _read(path, reading, BURSTGPT_COLUMNS)


def _read(path: Path, reading: Reading, columns: _Columns) -> Iterator[TraceRequest]:
    block_tokens = reading.options.block_tokens or BLOCK_TOKENS
    lines = read_lines(path, reading.progress)
    names = _names(path, next(lines, (1, b""))[1], columns)
    for number, line in lines:
        reading.report.rows_read += 1
        try:
            cells = next(csv.reader([_text(line)], strict=True))
            request = _request(_fields(names, cells), columns, reading, block_tokens)
        except (RowError, csv.Error) as error:
            reading.skip(path, number, str(error))
            continue
        reading.report.rows_used += 1
        yield request


def _names(path: Path, line: bytes, columns: _Columns) -> list[str]:
    try:
        names = [name.strip() for name in next(csv.reader([_text(line)]), [])]
    except (RowError, csv.Error) as error:
        raise TraceError(path, "line 1", str(error)) from error
    if missing := {columns.timestamp, columns.input} - set(names):
        reason = f"the column {min(missing)!r} is missing; found {', '.join(names) or 'none'}"
        raise TraceError(path, "line 1", reason)
    return names


def _fields(names: list[str], cells: list[str]) -> Mapping[str, str]:
    if len(cells) != len(names):
        raise RowError(f"it has {len(cells)} cells, but the table {len(names)} columns")
    return dict(zip(names, map(str.strip, cells), strict=True))


def _request(
    row: Mapping[str, str], columns: _Columns, reading: Reading, block_tokens: int
) -> TraceRequest:
    n_input = _count(row[columns.input], columns.input)
    output = row.get(columns.output)
    n_output = reading.count(_count(output, columns.output) if output else None, columns.output)
    seconds = reading.seconds(_timestamp(row[columns.timestamp]))
    ids = reading.unshared(blocks_of(n_input, block_tokens, has_partial=True))
    session = row.get(columns.session) if columns.session else None
    model = row.get(columns.model) if columns.model else None
    return TraceRequest(
        seconds,
        n_input,
        n_output,
        ids,
        block_tokens,
        session or None,
        model=model or None,
        duration_seconds=duration(row.get(columns.duration)) if columns.duration else None,
    )


def _count(cell: str, name: str) -> int:
    number = cell.removesuffix(".0")
    if not (number.isascii() and number.isdigit()) or int(number) > MAX_INPUT_TOKENS:
        raise RowError(f"{name} is {cell!r}, not a number of tokens")
    return int(number)


def _timestamp(cell: str) -> float:
    """Return a number, or the seconds of a date. Fractions finer than a microsecond are cut."""
    try:
        return float(cell)
    except ValueError:
        whole, point, fraction = cell.partition(".")
        digits = fraction[: len(fraction) - len(fraction.lstrip("0123456789"))]
        zone = fraction[len(digits) :]
    try:
        date = datetime.fromisoformat(f"{whole}{point}{digits[:6]}{zone}")
    except ValueError:
        raise RowError(f"its time is {cell!r}, neither a number nor a date") from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _text(line: bytes) -> str:
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise RowError(f"it is no UTF-8: {error.reason}") from None
