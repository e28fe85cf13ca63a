"""Rows of JSON, one a line, checked and turned into requests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from prefixcache.traces.files import read_lines
from prefixcache.traces.reading import FIRST_UNSHARED_ID, MAX_INPUT_TOKENS, Reading, RowError
from prefixcache.traces.records import TraceRequest

Count = Annotated[int, Meta(ge=0, le=MAX_INPUT_TOKENS)]
HashId = Annotated[int, Meta(ge=0)]
Row = TypeVar("Row", bound=msgspec.Struct)

_FIELD = re.compile(r"at `\$\.(\w+)`$")
_LONGEST_SHOWN = 40


def read_rows(
    path: Path,
    reading: Reading,
    kind: type[Row],
    convert: Callable[[Row, Reading], TraceRequest],
    *,
    shows_values: bool = True,
) -> Iterator[TraceRequest]:
    """Yield a request for each line; what cannot be used is counted.

    Args:
        kind: what a line must hold.
        convert: makes the request, or raises RowError.
        shows_values: whether an error may name the value at fault; not where it may be text.
    """
    decoder = msgspec.json.Decoder(kind)
    report = reading.report
    for number, line in read_lines(path, reading.progress):
        report.rows_read += 1
        try:
            request = convert(decode(decoder, line, shows_values=shows_values), reading)
        except RowError as error:
            reading.skip(path, number, str(error))
            continue
        report.rows_used += 1
        yield request


def decode(decoder: msgspec.json.Decoder[Row], data: bytes, *, shows_values: bool = True) -> Row:
    """Return a row. Raises RowError, which names the field and, if asked, its value."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _refuse(data, str(error), shows_values)


def require_blocks(n_ids: int, input_tokens: int, block_tokens: int, *, has_partial: bool) -> None:
    """Raise RowError unless a prompt has as many ids as its length asks for.

    Args:
        has_partial: whether a last block that is not full has an id.
    """
    n_blocks = blocks_of(input_tokens, block_tokens, has_partial=has_partial)
    if n_ids != n_blocks:
        raise RowError(
            f"its input of {input_tokens} tokens has {n_blocks} blocks of {block_tokens}, but"
            f" {n_ids} hash ids are given"
        )


def own_ids(ids: tuple[int, ...]) -> tuple[int, ...]:
    """Return a trace's ids below those that we give out ourselves: of 64 bits, 63 are kept."""
    if ids and max(ids) >= FIRST_UNSHARED_ID:
        return tuple(id % FIRST_UNSHARED_ID for id in ids)
    return ids


def blocks_of(input_tokens: int, block_tokens: int, *, has_partial: bool) -> int:
    """Return how many ids a prompt of that length has."""
    return -(-input_tokens // block_tokens) if has_partial else input_tokens // block_tokens


def duration(value: object) -> float | None:
    """Return how many seconds a request took; None where that is not told, or is no such number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if seconds >= 0 and isfinite(seconds) else None


def _refuse(data: bytes, reason: str, shows_values: bool) -> NoReturn:
    """Raise the RowError for a row that is not what it should be."""
    try:
        row = json.loads(data, parse_constant=_no_number)
    except RowError as error:
        raise RowError(f"the JSON is malformed: {error}") from None
    except (ValueError, RecursionError):
        raise RowError(reason) from None
    found = _FIELD.search(reason)
    value = row.get(found[1]) if found and isinstance(row, dict) else None
    if shows_values and isinstance(value, str | float | int):
        reason = f"{reason}: it is {json.dumps(value)[:_LONGEST_SHOWN]}"
    raise RowError(reason)


def _no_number(name: str) -> NoReturn:
    raise RowError(f"{name} is no JSON number")
