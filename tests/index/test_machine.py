"""Whatever the order of calls, the index does what plain structures say it should."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from prefixcache.errors import PoolExhaustedError, RequestTooLargeError
from prefixcache.index import Lease, Namespace, PrefixCache, Scope, pack
from tests.index.fake_kv import FakeKV
from tests.index.reference import Ids, NoRoom, Reference

BLOCK = 2
NAMESPACES = [Namespace(), Namespace(tenant="b"), Namespace(tenant="b", adapter="x")]
SCOPES = {
    Scope.model("default"): NAMESPACES,
    Scope.tenant("b"): NAMESPACES[1:],
    Scope.adapter("x"): NAMESPACES[2:],
    Scope.namespace(NAMESPACES[0]): NAMESPACES[:1],
}
IDS = st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)
NAMES = st.sampled_from(NAMESPACES)


@dataclass
class Running:
    """A request: its ids so far all have KV."""

    lease: Lease
    ids: Ids
    reads: bool
    stores: bool
    committed: Ids = field(default=())
    is_current: bool = True


class CacheMachine(RuleBasedStateMachine):
    """A hit is KV that was really written for these tokens, and nothing leased is lost."""

    running = Bundle("running")
    pool_blocks = (7, 9)
    growth_blocks = 2
    token_exact = True

    def __init__(self) -> None:
        super().__init__()
        self.kv = FakeKV(BLOCK, len(self.pool_blocks))
        self.cache = PrefixCache(
            pool_blocks=self.pool_blocks,
            block_size_tokens=BLOCK,
            growth_blocks=self.growth_blocks,
            token_exact_reuse=self.token_exact,
            copy_block=self.kv.copy_block,
        )
        self.reference = self.new_reference()
        self.live: list[Running] = []
        self.stored: dict[Namespace, set[Ids]] = {name: set() for name in NAMESPACES}

    def new_reference(self) -> Reference | None:
        return None

    @property
    def n_free(self) -> int:
        return min(self.cache.counts(group).free for group in range(len(self.pool_blocks)))

    @rule(target=running, namespace=NAMES, ids=IDS, read=st.booleans(), store=st.booleans())
    def acquire(
        self, namespace: Namespace, ids: Ids, read: bool, store: bool
    ) -> Running | MultipleResults[Running]:
        promised = self.cache.match_length(namespace, pack(ids)) if read else 0
        has_room = self.n_free * BLOCK >= len(ids)
        before = [self.cache.counts(group) for group in range(len(self.pool_blocks))]
        expected: int | None = None
        if self.reference is not None:
            try:
                number = self.cache.stats().lookups + len(self.reference.numbers)
                expected = self.reference.acquire(number, namespace, ids, read=read, store=store)
            except NoRoom:
                with pytest.raises(PoolExhaustedError):
                    self.cache.acquire(namespace, pack(ids), read=read, store=store)
                return multiple()
        try:
            lease = self.cache.acquire(namespace, pack(ids), read=read, store=store)
        except PoolExhaustedError:
            assert not has_room
            assert before == [self.cache.counts(group) for group in range(len(before))]
            return multiple()
        assert expected in (None, lease.cached_tokens)
        assert lease.cached_tokens == promised or (lease.cached_tokens < promised and not has_room)
        return self.start(Running(lease, ids, read, store))

    def start(self, request: Running) -> Running:
        lease, ids = request.lease, request.ids
        assert lease.cached_tokens < len(ids)
        assert lease.capacity_tokens == -(-len(ids) // BLOCK) * BLOCK
        self.kv.assert_holds(lease, ids[: lease.cached_tokens])
        self.kv.write(lease, ids, lease.cached_tokens)
        self.live.append(request)
        return request
