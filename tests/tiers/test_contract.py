"""The contract itself, kept by the plainest tier that can: what it asks for can be done."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from prefixcache.tiers import BlockRecord, BlockTier, StoredScope, WantedBlock
from tests.tiers.contract import TierContract


class MemoryTier:
    """Records in a dict."""

    def __init__(self) -> None:
        self._records: dict[bytes, BlockRecord] = {}

    def likely_length(self, keys: Sequence[bytes]) -> int | None:
        gaps = (index for index, key in enumerate(keys) if key not in self._records)
        return next(gaps, len(keys))

    def read(self, wanted: Sequence[WantedBlock]) -> list[BlockRecord]:
        found: list[BlockRecord] = []
        for block in wanted:
            record = self._records.get(block.key)
            if record is None or not record.answers(block):
                break
            found.append(record)
        return found

    def write(self, records: Sequence[BlockRecord]) -> None:
        for record in records:
            self._records.setdefault(record.key, record)

    def invalidate(self, scope: StoredScope) -> None:
        for key in [k for k, r in self._records.items() if scope.holds(r.namespace)]:
            del self._records[key]

    def close(self) -> None:
        self._records.clear()


@pytest.fixture
def tier() -> BlockTier:
    return MemoryTier()


class TestMemoryTier(TierContract):
    """What every tier keeps to."""
