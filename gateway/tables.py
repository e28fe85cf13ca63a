"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def as_columns(lines: Sequence[Sequence[str]], *, n_left: int = 1) -> str:
    """Return lines of equally many cells, aligned: the first `n_left` columns to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_aligned(line, widths, n_left) for line in lines)


def count_text(count: int | None) -> str:
    """Return a count as a cell, its thousands apart; None: there is none."""
    return "-" if count is None else f"{count:,}"


def _aligned(line: Sequence[str], widths: Sequence[int], n_left: int) -> str:
    pairs = list(zip(line, widths, strict=True))
    left = [cell.ljust(width) for cell, width in pairs[:n_left]]
    return "  ".join([*left, *(cell.rjust(width) for cell, width in pairs[n_left:])]).rstrip()
