"""The disk tier against a plain dict, in any order of calls, restarts and torn ends."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from prefixcache.tiers import BlockRecord, StoredScope
from prefixcache.tiers.disk import DiskTier
from tests.tiers.made import owner, records, same, wanted

MAX_BYTES = 1 << 16
tokens = st.lists(st.sampled_from([0, 1]), min_size=1, max_size=5).map(
    lambda heads: [token for head in heads for token in (head, 1, 2, 3)]
)
tenants = st.sampled_from(["shop", "rival"])


class DiskMachine(RuleBasedStateMachine):
    """Whatever happens, what is read is what was written and not invalidated since."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.valid: dict[bytes, BlockRecord] = {}  # the model: given up ones may stay
        self.is_small = True  # nothing can have been given up or torn off
        self.written_bytes = 0
        self.open()

    def open(self) -> None:
        self.tier = DiskTier(self.folder, max_bytes=MAX_BYTES, segment_bytes=1 << 12)

    def teardown(self) -> None:
        self.tier.close()
        shutil.rmtree(self.folder)

    @rule(tokens=tokens, tenant=tenants, part_bytes=st.sampled_from([0, 10, 3000]))
    def write(self, tokens: list[int], tenant: str, part_bytes: int) -> None:
        stored = records(tokens, owner(tenant), part_bytes)
        self.tier.write(stored)
        for record in stored:
            self.valid.setdefault(record.key, record)
        self.written_bytes += sum(record.n_bytes + 500 for record in stored)
        self.is_small = self.is_small and self.written_bytes < MAX_BYTES // 2

    @rule(tokens=tokens, tenant=tenants)
    def read(self, tokens: list[int], tenant: str) -> None:
        asked = wanted(records(tokens, owner(tenant)))
        likely = self.tier.likely_length([block.key for block in asked])
        found = self.tier.read(asked)
        assert len(found) == likely
        assert [record.key for record in found] == [block.key for block in asked[: len(found)]]
        for record in found:
            assert same([record], [self.valid[record.key]]) or not self.is_small
        if self.is_small and len(found) < len(asked):
            assert asked[len(found)].key not in self.valid

    @rule(tenant=st.one_of(st.none(), tenants))
    def invalidate(self, tenant: str | None) -> None:
        scope = StoredScope(tenant=None if tenant is None else owner(tenant).tenant)
        self.tier.invalidate(scope)
        self.valid = {
            key: record for key, record in self.valid.items() if not scope.holds(record.namespace)
        }

    @rule()
    def compact(self) -> None:
        self.tier.compact()

    @rule()
    def restart(self) -> None:
        self.tier.close()
        self.open()

    @rule(cut=st.integers(1, 4000), keeps_sidecars=st.booleans())
    def tear(self, cut: int, keeps_sidecars: bool) -> None:
        self.tier.close()
        segments = sorted(self.folder.glob("*.segment"))
        for path in segments[-1:]:
            with path.open("r+b") as file:
                file.truncate(max(0, path.stat().st_size - cut))
            self.is_small = False
        for path in () if keeps_sidecars else self.folder.glob("*.index"):
            path.unlink()
        self.open()

    @invariant()
    def it_is_within_its_size(self) -> None:
        assert sum(path.stat().st_size for path in self.folder.iterdir()) <= MAX_BYTES

    @invariant()
    def what_it_knows_is_valid(self) -> None:
        for key in list(self.tier._shelf.entries):
            assert (self.tier.likely_length([key]) == 1) <= (key in self.valid)


DiskMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestDiskMachine = DiskMachine.TestCase
