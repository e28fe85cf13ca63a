"""Tables as text for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(lines: Sequence[Sequence[str]], *, left: Collection[int] = (0,)) -> str:
    """Return lines of cells as text in columns, those in `left` to the left, others to the right.

    The first line names the columns. All lines have as many cells.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
