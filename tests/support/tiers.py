"""A tier in memory that outlives engines, and can be made to misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from prefixcache.errors import TierError
from prefixcache.tiers import BlockRecord, StoredScope, WantedBlock


class MemoryTier:
    """Keeps copies of records by their keys; what it does to those who ask can be set."""

    def __init__(self, *, knows: bool = True) -> None:
        """Make it. `knows`: whether it can tell at once what it has."""
        self.records: dict[bytes, BlockRecord] = {}
        self.scopes: list[StoredScope] = []
        self.reads: list[int] = []  # blocks that each read asked for
        self.written: list[int] = []  # blocks of each write
        self.spoil: Callable[[list[BlockRecord]], list[BlockRecord]] = lambda records: records
        self.is_broken = False
        self.gate = threading.Event()  # calls wait for it
        self.gate.set()
        self.is_closed = False
        self._knows = knows

    def likely_length(self, keys: Sequence[bytes]) -> int | None:
        if not self._knows:
            return None
        missing = (at for at, key in enumerate(keys) if key not in self.records)
        return next(missing, len(keys))

    def read(self, wanted: Sequence[WantedBlock]) -> list[BlockRecord]:
        self._enter()
        self.reads.append(len(wanted))
        found: list[BlockRecord] = []
        for each in wanted:
            if each.key not in self.records:
                break
            found.append(self.records[each.key])
        return self.spoil(found)

    def write(self, records: Sequence[BlockRecord]) -> None:
        self._enter()
        self.written.append(len(records))
        for record in records:
            parts = tuple(None if part is None else bytes(part) for part in record.parts)
            self.records.setdefault(record.key, replace(record, parts=parts))

    def invalidate(self, scope: StoredScope) -> None:
        self._enter()
        self.scopes.append(scope)
        kept = {key: r for key, r in self.records.items() if not scope.holds(r.namespace)}
        self.records = kept

    def close(self) -> None:
        self.is_closed = True

    def _enter(self) -> None:
        self.gate.wait(60)
        if self.is_broken:
            raise TierError("it is broken on purpose")
