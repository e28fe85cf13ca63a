"""The file of published prompts, from which the next start publishes them again."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gateway.errors import GatewayError
from gateway.published import PublishedPrompt, Retirement
from gateway.state_files import BUSY_SECONDS, StateFile

FILE_NAME = "prompts.sqlite3"

_SCHEMA = """
CREATE TABLE prompts (
    name TEXT PRIMARY KEY,
    version INTEGER NOT NULL,  -- the last one; no name has two
    prompt BLOB,               -- JSON; NULL: it is retired
    tenants BLOB NOT NULL      -- JSON: whom it is or was for
) WITHOUT ROWID
"""
_PUT = """
INSERT INTO prompts (name, version, prompt, tenants) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET version = excluded.version, prompt = excluded.prompt,
    tenants = excluded.tenants
"""


_Row = tuple[str, int, bytes | None, bytes]


class PromptsFileError(GatewayError):
    """The file of published prompts cannot be used; the text says why."""


_FILE = StateFile(
    setting="prompts_db",
    content="published prompts",
    schema=_SCHEMA,
    version=101,
    error=PromptsFileError,
)


class PromptsDb:
    """Keeps the last version of each name, in a file or in memory alone. Used from any thread.

    All calls block for as long as the file takes, and raise PromptsFileError.
    """

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._name = name
        self._in_use = threading.Lock()
        connection.execute("PRAGMA secure_delete = ON")  # what is retired is not left in the file

    @classmethod
    def open(cls, path: Path | None, *, busy_seconds: float = BUSY_SECONDS) -> PromptsDb:
        """Return the prompts in a file, made if need be, for its owner alone; None: in memory."""
        connection = _FILE.open(path, busy_seconds=busy_seconds)
        return cls(connection, "memory" if path is None else str(path))

    def read(self) -> list[PublishedPrompt | Retirement]:
        """Return the last version of each name, in order of their names."""
        return [_row(*row) for row in self._do("SELECT * FROM prompts ORDER BY name")]

    def put(self, prompt: PublishedPrompt) -> None:
        """Remember a version in place of the one before it."""
        tenants = msgspec.json.encode(prompt.tenants)
        self._do(_PUT, (prompt.name, prompt.version, msgspec.json.encode(prompt), tenants))

    def retire(self, prompt: PublishedPrompt) -> None:
        """Forget the text of a version, unless another has taken its place."""
        self._do(
            "UPDATE prompts SET prompt = NULL WHERE name = ? AND version = ?",
            (prompt.name, prompt.version),
        )

    def close(self) -> None:
        """Close the file."""
        with self._in_use:
            self._connection.close()

    def _do(self, statement: str, values: Iterable[object] = ()) -> list[_Row]:
        try:
            with self._in_use, self._connection:
                return self._connection.execute(statement, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise PromptsFileError(f"{self._name}: {error}; see the setting prompts_db") from error


def _row(
    name: str, version: int, prompt: bytes | None, tenants: bytes
) -> PublishedPrompt | Retirement:
    try:
        if prompt is not None:
            return msgspec.json.decode(prompt, type=PublishedPrompt)
        audience = msgspec.json.decode(tenants, type=tuple[str, ...] | None)
    except msgspec.MsgspecError as error:
        raise PromptsFileError(f"the published prompt {name!r} cannot be read: {error}") from error
    return Retirement(name=name, version=version, tenants=audience)
