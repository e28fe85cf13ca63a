"""SQLite files in which a server keeps something for its next start."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import GatewayError

BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """One kind of file: its tables, and how trouble with it is told."""

    setting: str  # that says where it is
    content: str  # what it holds, for people
    schema: str
    version: int  # of the schema; no two kinds have the same
    error: type[GatewayError]

    def open(self, path: Path | None, *, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
        """Return a connection for any thread, one at a time; None: to a database in memory.

        The file is made if need be, for its owner alone. `busy_seconds`: how long a write waits for
        another server that writes to it.

        Raises:
            GatewayError: of the kind `error`: it cannot be made, read or written, or is some
                other file.
        """
        if path is None:
            return self._connect(":memory:", busy_seconds)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            reason = f"{path}: {error.strerror}; set {self.setting} elsewhere"
            raise self.error(reason) from error
        return self._connect(str(path), busy_seconds)

    def require_ours(self, connection: sqlite3.Connection, name: str) -> None:
        """Raise an error of the kind `error` where the database is of another kind or version."""
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found != self.version:
            raise self.error(f"{name} is not of this version, or is no file of {self.content}")

    def _connect(self, name: str, busy_seconds: float) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(name, timeout=busy_seconds, check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                with connection:  # other servers may do the same at this moment
                    connection.execute("BEGIN IMMEDIATE")
                    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                        connection.execute(self.schema)
                        connection.execute(f"PRAGMA user_version = {self.version}")
                self.require_ours(connection, name)
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            reason = f"{name} cannot be used: {error}; set {self.setting} elsewhere"
            raise self.error(reason) from error
        return connection


def state_path(env: Mapping[str, str], file_name: str) -> Path:
    """Return where a file is kept if nothing else is set: in the user's state directory."""
    state = env.get("XDG_STATE_HOME", "")
    home = Path(env.get("HOME") or "~").expanduser()
    folder = Path(state) if Path(state).is_absolute() else home / ".local" / "state"
    return folder / "prefixcache" / file_name
