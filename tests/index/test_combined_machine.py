"""Tenants, prompts, twins and time, with windows and a lower tier as well."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    MultipleResults,
    invariant,
    multiple,
    rule,
)

from prefixcache.errors import PoolExhaustedError
from prefixcache.index import BlockEvent, Namespace, pack
from prefixcache.index.spans import Runs
from prefixcache.types import BlockId
from tests.index.fake_kv import Entry, FakeKV
from tests.index.machines import run_machine
from tests.index.tenants_reference import Ids
from tests.index.tenants_world import Running
from tests.index.test_tenants_machine import IDS, NAMES, TenantsMachine

Blocks = list[list[Entry | None]]  # what is in each


class KVTier:
    """Keeps the KV of the full groups that it was given; refuses when `is_full`."""

    def __init__(self) -> None:
        self.kv: FakeKV | None = None
        self.kept: dict[int, list[Blocks]] = {}  # by group
        self.is_full = False
        self._handles = count()

    def demote(self, event: BlockEvent) -> int | None:
        if self.is_full:
            return None
        assert self.kv is not None
        handle = next(self._handles)
        self.kept[handle] = [
            [self.kv.read(group, block) for block in _blocks(runs)[-event.n_blocks :]]
            for group, runs in enumerate(event.runs)
        ]
        for group, runs in enumerate(event.windows, len(event.runs)):
            assert all(self.kv.read(group, block) for block in _blocks(runs))
        return handle

    def forget(self, handle: object) -> None:
        assert isinstance(handle, int)
        del self.kept[handle]


class TierMachine(TenantsMachine):
    """What leaves the device stays known, is told to who goes on with it, and is what it was."""

    def __init__(self) -> None:
        self.tier = self.copies = KVTier()
        super().__init__()
        self.copies.kv = self.kv

    @rule(is_full=st.booleans())
    def fill_the_tier(self, is_full: bool) -> None:
        self.copies.is_full = is_full

    @rule(data=st.data())
    def lose_a_copy(self, data: st.DataObject) -> None:
        if self.copies.kept:
            handle = data.draw(st.sampled_from(sorted(self.copies.kept)))
            del self.copies.kept[handle]
            self.cache.copies.forget(handle)

    @rule(namespace=NAMES, ids=IDS, n_blocks=st.integers(1, 9), n_same=st.integers(2, 11))
    def leave_and_come_back(
        self, namespace: Namespace, ids: Ids, n_blocks: int, n_same: int
    ) -> None:
        self.run_to_the_end(namespace, ids)
        self.evict(n_blocks)
        self.run_to_the_end(namespace, (*ids[:n_same], 5))

    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        """Take what is said to be away for what would be computed."""
        if not self.live:
            return
        request = data.draw(st.sampled_from(self.live))
        lease, at = request.lease, request.lease.n_stored
        for handle, first, n_blocks, start in self.cache.copies.away(lease, pack(request.ids)):
            assert start == at
            assert n_blocks > 0
            assert isinstance(handle, int)
            for blocks in self.copies.kept[handle]:
                self.assert_right(request, blocks[first : first + n_blocks], start)
            at += n_blocks
        if at > lease.n_stored:
            self.commit_up_to(request, at * self.block)

    def assert_right(self, request: Running, blocks: Blocks, start: int) -> None:
        position = start * self.block
        for block in blocks:
            for entry in block:
                position += 1
                own = request.lease.namespace, request.lease.generations, request.ids[:position]
                right = [own]
                if request.shared is not None:
                    right.append((*request.shared[:2], request.shared[2][:position]))
                assert entry in right

    @invariant()
    def the_tier_keeps_nothing_that_nobody_names(self) -> None:
        assert self.cache._core.locations.handles().keys() == self.copies.kept.keys()


class WindowsMachine(TierMachine):
    """With layer groups that see a part of what came before, as well."""

    token_exact = False
    pool_blocks = (30, 26)
    windows = (3, 6)
    window_blocks = (10, 12)
    chunk = 3

    @property
    def window_groups(self) -> range:
        n_full = len(self.pool_blocks)
        return range(n_full, n_full + len(self.windows))

    @property
    def has_evicted(self) -> bool:
        """Whether less may be found than was stored: there may be holes at any moment."""
        return True

    def enter(self, request: Running) -> None:
        super().enter(request)
        request.is_found = False

    def assert_served(self, waiter: object, leader: Running) -> None:
        pass

    @rule(target=TenantsMachine.running, namespace=NAMES, ids=IDS, at=st.integers(1, 11))
    def run_side_by_side(self, namespace: Namespace, ids: Ids, at: int) -> MultipleResults[Running]:
        """One that did not look is behind an equal one, and takes over what that has stored."""
        started = [self.start(namespace, ids, read=False) for _ in range(2)]
        requests = [request for request in started if request is not None]
        for request, n_tokens in zip(requests, (len(ids), min(at, len(ids))), strict=False):
            self.commit_up_to(request, n_tokens)
        return multiple(*requests)

    @rule(n_tokens=st.integers(1, 12))
    def set_chunk(self, n_tokens: int) -> None:
        self.chunk = n_tokens

    def compute(self, request: Running, n_tokens: int) -> int:
        """Write it chunk by chunk; it is stored afterwards, so with holes."""
        while request.n_written < n_tokens:
            stop = min(request.n_written + self.chunk, n_tokens)
            held = [self.cache.counts(group).held for group in self.window_groups]
            try:
                self.cache.slide(request.lease, request.n_written, stop)
            except PoolExhaustedError:
                now = [self.cache.counts(group).held for group in self.window_groups]
                assert all(a <= b for a, b in zip(now, held, strict=True))
                return request.n_written
            super().compute(request, stop)
        return n_tokens


class LeadsMachine(WindowsMachine):
    """With layer groups that keep the first tokens of a prompt beside their window."""

    leads = (3, 0)
    window_blocks = (14, 12)


def _blocks(runs: Runs) -> list[BlockId]:
    return [BlockId(first + i) for first, n_blocks in runs for i in range(n_blocks)]


@pytest.mark.parametrize("machine", [TierMachine, WindowsMachine, LeadsMachine])
def test_everything_at_once_equals_plain_structures(machine: type[TenantsMachine]) -> None:
    """No order of calls shows a token a hole or wrong KV, or loses a block or a copy."""
    run_machine(machine, 40)
