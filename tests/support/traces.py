"""Small trace files for tests, and where the public ones are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.traces.public import TRACES

CASES = os.environ.get("PREFIXCACHE_CASES")
needs_cases = pytest.mark.skipif(
    CASES is None, reason="PREFIXCACHE_CASES names no folder with field cases"
)


def write_lines(path: Path, *rows: object) -> Path:
    """Write a JSON value a line; text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def mooncake(*ids: int, at_ms: float = 0, **more: object) -> dict[str, object]:
    """A Mooncake row of whole blocks."""
    row = {"timestamp": at_ms, "input_length": 512 * len(ids), "output_length": 1}
    return {**row, "hash_ids": list(ids), **more}


def write_mooncake(path: Path, *prompts: tuple[int, ...]) -> Path:
    """Write a Mooncake trace of a prompt a second."""
    rows = [mooncake(*ids, at_ms=1000 * second) for second, ids in enumerate(prompts)]
    return write_lines(path, *rows)


def traces_folder() -> Path:
    """Return the folder with the public traces."""
    assert TRACES is not None
    return Path(TRACES)


def case_file(name: str) -> str:
    """Return the input of a field case."""
    assert CASES is not None
    return str(Path(CASES) / "inputs" / name)
