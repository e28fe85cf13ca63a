"""Plain text for people: tables, and JSON that can be read."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


def table_of(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells under their headings; numbers stand to the right."""
    rows = [tuple(headings), *map(tuple, lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_row(row, widths) for row in rows)


def json_text(value: object) -> str:
    """Return `value` as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def count_text(count: int | None) -> str:
    """Return a count with its thousands apart; None is no limit."""
    return "-" if count is None else f"{count:,}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.rjust(width) if index else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()
