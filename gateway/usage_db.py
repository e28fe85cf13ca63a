"""The tenants' accounts: counters by day, tenant and model in an SQLite file."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from gateway.errors import GatewayError
from gateway.state_files import BUSY_SECONDS, StateFile, state_path

FLUSH_SECONDS = 1.0  # what ended longer ago than this survives a kill
FILE_NAME = "usage.sqlite3"

_log = logging.getLogger(__name__)
_SCHEMA = """
CREATE TABLE usage (
    day TEXT NOT NULL,      -- of UTC, as 2026-12-31
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,    -- empty: the request came to no model
    counter TEXT NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, model, counter)
) WITHOUT ROWID
"""
_ADD = """
INSERT INTO usage (day, tenant, model, counter, amount) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET amount = amount + excluded.amount
"""
_READ = """
SELECT day, tenant, model, counter, amount FROM usage
WHERE day BETWEEN ? AND ? AND (? IS NULL OR tenant = ?)
ORDER BY day, tenant, model, counter
"""


class UsageFileError(GatewayError):
    """The file of the tenants' accounts cannot be used; the text says why."""


_FILE = StateFile(
    setting="usage_db", content="accounts", schema=_SCHEMA, version=1, error=UsageFileError
)


class AccountKey(NamedTuple):
    """Whose counters: a tenant's, of one model, on one day of UTC."""

    day: str
    tenant: str
    model: str


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The counters of one key."""

    key: AccountKey
    amounts: Mapping[str, int]


class UsageDb:
    """Adds up counters in a file, or in memory alone.

    `add` never waits: one thread of our own writes what has come, once a second and at `close`.
    Several servers may add to one file. Used from any thread.
    """

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._in_use = threading.Lock()  # the connection's
        self._pending: dict[AccountKey, Counter[str]] = {}
        self._pending_lock = threading.Lock()
        self._is_ending = threading.Event()
        self._writer = threading.Thread(target=self._write_on, name="usage", daemon=True)
        self._is_failing = False

    @classmethod
    def open(cls, path: Path | None, *, busy_seconds: float = BUSY_SECONDS) -> UsageDb:
        """Return the accounts in a file, made if need be, for its owner alone; None: in memory.

        `busy_seconds`: how long a write waits for another server that writes to it.

        Raises:
            UsageFileError: it cannot be made, read or written, or is some other file.
        """
        connection = _FILE.open(path, busy_seconds=busy_seconds)
        return cls(connection, "memory" if path is None else str(path))

    def start(self) -> None:
        """Begin to write what is added."""
        self._writer.start()

    def add(self, key: AccountKey, amounts: Mapping[str, int]) -> None:
        """Add to the counters of `key`; written within FLUSH_SECONDS."""
        with self._pending_lock:
            pending = self._pending.setdefault(key, Counter())
            for counter, amount in amounts.items():
                pending[counter] += amount

    def flush(self) -> None:
        """Write what was added so far. Blocks; what cannot be written is kept for later."""
        with self._in_use:
            with self._pending_lock:
                batch, self._pending = self._pending, {}
            if batch and not self._is_written(batch):
                for key, amounts in batch.items():
                    self.add(key, amounts)

    def rows(self, *, first_day: str, last_day: str, tenant: str | None = None) -> list[UsageRow]:
        """Return the counters of those days, `tenant`'s or everybody's, in order. Blocks.

        Raises:
            UsageFileError: the file cannot be read.
        """
        self.flush()
        try:
            with self._in_use:
                found = self._connection.execute(_READ, (first_day, last_day, tenant, tenant))
                return grouped(found.fetchall())
        except sqlite3.Error as error:
            raise UsageFileError(f"{self._name} cannot be read: {error}") from error

    def close(self) -> None:
        """Write the rest and close the file. Blocks."""
        self._is_ending.set()
        if self._writer.is_alive():
            self._writer.join()
        self.flush()
        with self._in_use:
            self._connection.close()

    def _write_on(self) -> None:
        while not self._is_ending.wait(FLUSH_SECONDS):
            self.flush()

    def _is_written(self, batch: Mapping[AccountKey, Mapping[str, int]]) -> bool:
        lines = [(*key, *pair) for key, amounts in batch.items() for pair in amounts.items()]
        try:
            with self._connection:
                self._connection.executemany(_ADD, lines)
        except sqlite3.Error as error:
            if not self._is_failing:
                _log.error("usage cannot be written to %s: %s; it is kept", self._name, error)
            self._is_failing = True
            return False
        self._is_failing = False
        return True


def read_usage(path: Path, *, first_day: str, last_day: str, tenant: str | None) -> list[UsageRow]:
    """Return what a file holds, which a server may be writing. Raises UsageFileError."""
    if not path.is_file():
        raise UsageFileError(f"there is no file {path}")
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            _FILE.require_ours(connection, str(path))
            found = connection.execute(_READ, (first_day, last_day, tenant, tenant))
            return grouped(found.fetchall())
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise UsageFileError(f"{path} cannot be read: {error}") from error


def grouped(lines: Iterable[tuple[str, str, str, str, int]]) -> list[UsageRow]:
    """Return sorted lines of one counter each as rows of all counters of a key."""
    rows: dict[AccountKey, dict[str, int]] = {}
    for day, tenant, model, counter, amount in lines:
        rows.setdefault(AccountKey(day, tenant, model), {})[counter] = amount
    return [UsageRow(key, MappingProxyType(amounts)) for key, amounts in rows.items()]


def state_file(env: Mapping[str, str]) -> Path:
    """Return where accounts are kept if nothing else is set: in the user's state directory."""
    return state_path(env, FILE_NAME)
