"""One reading of a trace: what it was told, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from prefixcache.errors import ConfigError, TraceError
from prefixcache.traces.files import Progress
from prefixcache.traces.texts import TextEncoder

MAX_INPUT_TOKENS = 2**26  # a row that says more is taken for damaged
SECONDS_PER_UNIT: Mapping[str, float] = MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6})

FIRST_UNSHARED_ID = 2**63  # ids from here on are given out by us; those of traces lie below

_MAX_KEPT = 1000  # places of bad rows that a report keeps


class RowError(Exception):
    """A row cannot be used; the text says why."""


class Skipped(NamedTuple):
    """A row that was not used."""

    file: str
    line: int | str  # its number, or a path of numbers where requests are nested
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How a trace is to be read. What is None is as the format has it."""

    strict: bool = False  # a row that cannot be used is an error
    sort: bool = False  # by arrival; holds the whole trace
    block_tokens: int | None = None
    time_unit: str | None = None  # s, ms or us
    encoder: TextEncoder | None = None  # for traces with text; None: the stand-in
    keep_prompts: bool = False  # requests of traces with text have it with them

    def __post_init__(self) -> None:
        if self.block_tokens is not None and self.block_tokens < 1:
            raise ConfigError("block_tokens", self.block_tokens, "must be at least 1")
        if self.time_unit is not None and self.time_unit not in SECONDS_PER_UNIT:
            reason = f"must be one of {', '.join(SECONDS_PER_UNIT)}"
            raise ConfigError("time_unit", self.time_unit, reason)


@dataclass(slots=True)
class ReadReport:
    """What a reading found. It grows while the trace is read."""

    rows_read: int = 0
    rows_used: int = 0
    rows_skipped: int = 0
    skipped: list[Skipped] = field(default_factory=list)  # the first ones
    inconsistent_rows: int = 0  # an id in it came after another one elsewhere
    inconsistent_at: list[int] = field(default_factory=list)  # the first ones: of the used, from 1
    rows_out_of_order: int = 0  # arrived before the row in front of them
    defaults: Counter[str] = field(default_factory=Counter)  # by field: rows that lack it
    is_timed: bool = True
    first_seconds: float | None = None  # as the trace has it: its own zero
    earliest_seconds: float | None = None
    latest_seconds: float | None = None


class Reading:
    """What the readers of one trace share: the options, the report, ids that nobody else has."""

    def __init__(self, options: ReadOptions, time_unit: str, progress: Progress | None) -> None:
        self.options = options
        self.time_unit = options.time_unit or time_unit
        self.progress = progress
        self.report = ReadReport()
        self._seconds = SECONDS_PER_UNIT[self.time_unit]
        self._is_timed: bool | None = None
        self._n_untimed = 0
        self._next_unshared = FIRST_UNSHARED_ID

    def seconds(self, timestamp: float | None) -> float:
        """Return an arrival in seconds.

        The first row decides: where it has no time no row may, and they come a second apart.

        Raises:
            RowError: the row has no time though others do, or the other way, or it is not finite.
        """
        if self._is_timed is None:
            self._is_timed = self.report.is_timed = timestamp is not None
        if timestamp is None:
            if self._is_timed:
                raise RowError("it has no timestamp, but rows before it have")
            self._n_untimed += 1
            return float(self._n_untimed - 1)
        if not self._is_timed:
            raise RowError(f"its timestamp is {timestamp}, but rows before it have none")
        if not isfinite(timestamp):
            raise RowError(f"its timestamp is {timestamp}")
        return timestamp * self._seconds

    def count(self, value: int | None, name: str) -> int:
        """Return a row's `value`, 0 where it lacks it; the report says how often that was so."""
        if value is None:
            self.report.defaults[name] += 1
            return 0
        return value

    def unshared(self, n_blocks: int) -> tuple[int, ...]:
        """Return ids for a prompt of which nothing is known: nobody else has them."""
        first = self._next_unshared
        self._next_unshared += n_blocks
        return tuple(range(first, self._next_unshared))

    def skip(self, file: Path, line: int | str, reason: str) -> None:
        """Count a row that cannot be used. Raises TraceError when none may be left out."""
        if self.options.strict:
            raise TraceError(file, place(line), reason)
        self.report.rows_skipped += 1
        if len(self.report.skipped) < _MAX_KEPT:
            self.report.skipped.append(Skipped(str(file), line, reason))


def place(line: int | str) -> str:
    """Return how an error names a row: by line, or by its path in a nested file."""
    return f"line {line}" if isinstance(line, int) else f"request {line}"
