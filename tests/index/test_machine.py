"""Whatever the order of calls, the index does what plain structures say it should."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from prefixcache.errors import PoolExhaustedError, RequestTooLargeError
from prefixcache.index import Lease, Namespace, PrefixCache, Scope, pack
from prefixcache.index.policies import POLICY_NAMES, make_policy
from prefixcache.types import PoolCounts
from tests.index.compacting import Compacting
from tests.index.fake_kv import FakeKV
from tests.index.machines import run_machine
from tests.index.reference import Claim, Ids, Reference

NAMESPACES = [Namespace(), Namespace(model="b"), Namespace(model="b", adapter="x")]
SCOPES = {
    Scope.tenant("default"): NAMESPACES,
    Scope.model("b"): NAMESPACES[1:],
    Scope.adapter("x"): NAMESPACES[2:],
    Scope.namespace(NAMESPACES[0]): NAMESPACES[:1],
}
NAMES = st.sampled_from(NAMESPACES)
BITS = st.lists(st.integers(0, 1), max_size=5).map(tuple)
IDS = st.builds(lambda n_zeros, rest: (0,) * n_zeros + rest, st.integers(1, 5), BITS)


def n_shared(a: Ids, b: Ids) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@dataclass(eq=False)
class Running:
    """A request. All of its ids have KV, its first `n_committed` are stored."""

    lease: Lease
    ids: Ids
    stores: bool  # and nothing that it depends on was invalidated
    claim: Claim | None = None
    n_committed: int = 0


class TokenExactMachine(RuleBasedStateMachine):
    """A hit is KV that was really computed from these tokens, and nothing leased is lost."""

    running = Bundle("running")
    block = 3
    pool_blocks: tuple[int, ...] = (9, 8)
    growth_blocks = 3
    token_exact = True
    policy = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.kv = FakeKV(self.block, len(self.pool_blocks))
        self.cache = PrefixCache(
            pool_blocks=self.pool_blocks,
            block_size_tokens=self.block,
            growth_blocks=self.growth_blocks,
            token_exact_reuse=self.token_exact,
            copy_block=self.kv.copy_block,
            policy=partial(make_policy, self.policy),
        )
        self.compacting = Compacting(self.cache, self.kv, len(self.pool_blocks))
        self.live: list[Running] = []
        self.stored: dict[Namespace, set[Ids]] = {name: set() for name in NAMESPACES}

    @rule(target=running, namespace=NAMES, ids=IDS, read=st.booleans(), store=st.booleans())
    def acquire(
        self, namespace: Namespace, ids: Ids, read: bool, store: bool
    ) -> Running | MultipleResults[Running]:
        request = self.start(namespace, ids, read=read, store=store)
        return multiple() if request is None else request

    @rule(target=running, namespace=NAMES, ids=IDS)
    def acquire_and_commit(
        self, namespace: Namespace, ids: Ids
    ) -> Running | MultipleResults[Running]:
        request = self.start(namespace, ids, read=True, store=True)
        if request is None:
            return multiple()
        self.commit(request)
        return request

    @rule(namespace=NAMES, ids=IDS)
    def run_to_the_end(self, namespace: Namespace, ids: Ids) -> None:
        request = self.start(namespace, ids, read=True, store=True)
        if request is not None:
            self.commit(request)
            self.release(request, again=False)

    def start(self, namespace: Namespace, ids: Ids, *, read: bool, store: bool) -> Running | None:
        before = self.all_counts()
        request = self.try_acquire(namespace, ids, read=read, store=store)
        if request is None:
            assert before == self.all_counts()
            return None
        lease = request.lease
        assert lease.cached_tokens < len(ids)
        assert lease.capacity_tokens == -(-len(ids) // self.block) * self.block
        self.kv.assert_holds(lease, ids[: lease.cached_tokens])
        self.kv.write(lease, ids, lease.cached_tokens)
        self.live.append(request)
        return request

    def try_acquire(
        self, namespace: Namespace, ids: Ids, *, read: bool, store: bool
    ) -> Running | None:
        promised = self.cache.match_length(namespace, pack(ids)) if read else 0
        has_room = self.n_free * self.block >= len(ids)
        try:
            lease = self.cache.acquire(namespace, pack(ids), read=read, store=store)
        except PoolExhaustedError:
            assert not has_room
            return None
        assert lease.cached_tokens == promised or (lease.cached_tokens < promised and not has_room)
        return Running(lease, ids, store)

    @rule(request=running, more=BITS)
    def extend(self, request: Running, more: Ids) -> None:
        ids = request.ids + more
        if request not in self.live:
            return
        before = self.all_counts(), request.lease.spans(0), request.lease.n_slack
        if self.try_extend(request, ids):
            assert request.lease.capacity_tokens >= len(ids)
            self.kv.write(request.lease, ids, len(request.ids))
            request.ids = ids
        else:
            after = self.all_counts(), request.lease.spans(0), request.lease.n_slack
            assert before == after

    def try_extend(self, request: Running, ids: Ids) -> bool:
        try:
            self.cache.extend(request.lease, len(ids))
        except PoolExhaustedError:
            return False
        except RequestTooLargeError:
            assert len(ids) > min(self.pool_blocks) * self.block
            return False
        return True

    @rule(request=running)
    def commit(self, request: Running) -> None:
        if request in self.live:
            self.cache.commit(request.lease, pack(request.ids))
            self.note_commit(request)

    def note_commit(self, request: Running) -> None:
        if request.stores:
            request.n_committed = len(request.ids) // self.block * self.block
            self.stored[request.lease.namespace].add(request.ids[: request.n_committed])

    @rule(request=consumes(running), again=st.booleans())
    def release(self, request: Running, again: bool) -> None:
        self.live.remove(request)
        self.cache.release(request.lease)
        if again:
            doubles = self.cache.stats().double_releases
            self.cache.release(request.lease)
            assert self.cache.stats().double_releases == doubles + 1
        assert request.lease.spans(0) == ()

    @rule(n_blocks=st.integers(0, 9))
    def evict(self, n_blocks: int) -> None:
        before = self.all_counts()
        freed = self.cache.evict(n_blocks)
        assert freed == min(n_blocks, before[0].cached)
        for counts, now in zip(before, self.all_counts(), strict=True):
            assert (now.free, now.held) == (counts.free + freed, counts.held)

    @rule(scope=st.sampled_from(list(SCOPES)))
    def invalidate(self, scope: Scope) -> None:
        before = self.all_counts()
        self.cache.invalidate(scope)
        assert before == self.all_counts()
        for namespace in SCOPES[scope]:
            self.stored[namespace].clear()
        for request in self.live:
            if request.lease.namespace in SCOPES[scope]:
                request.stores, request.n_committed = False, 0

    @rule()
    def reclaim(self) -> None:
        before = self.all_counts()[0]
        assert self.cache.reclaim() == self.all_counts()[0].free - before.free
        assert self.cache.reclaim() == 0

    @rule(n_pieces=st.integers(1, 20), short_blocks=st.integers(1, 3), least_hits=st.integers(0, 1))
    def compact(self, n_pieces: int, short_blocks: int, least_hits: int) -> None:
        self.compacting.go_on(n_pieces, short_blocks, least_hits)

    @rule(namespace=NAMES, ids=IDS)
    def look(self, namespace: Namespace, ids: Ids) -> None:
        found = self.cache.match_length(namespace, pack(ids))
        longest = max((n_shared(ids[:-1], known) for known in self.stored[namespace]), default=0)
        longest = longest if self.token_exact else longest // self.block * self.block
        assert found <= longest
        if self.cache.stats().evicted_blocks == 0:
            assert found == longest

    @property
    def n_free(self) -> int:
        return min(counts.free for counts in self.all_counts())

    def all_counts(self) -> list[PoolCounts]:
        return [self.cache.counts(group) for group in range(len(self.pool_blocks))]

    @invariant()
    def the_books_balance(self) -> None:
        self.cache.check()

    @invariant()
    def what_runs_keeps_its_kv(self) -> None:
        for request in self.live:
            self.kv.assert_holds(request.lease, request.ids)

    @invariant()
    def what_a_live_request_stored_is_found(self) -> None:
        for request in self.live:
            stored = request.ids[: request.n_committed]
            found = self.cache.match_length(request.lease.namespace, pack([*stored, 0]))
            assert found >= len(stored)


class ReferenceMachine(TokenExactMachine):
    """With whole blocks, every count, hit and refusal is what the reference says."""

    block = 2
    pool_blocks: tuple[int, ...] = (11,)
    token_exact = False

    def __init__(self) -> None:
        super().__init__()
        self.reference = Reference(min(self.pool_blocks), self.block, self.growth_blocks)
        self.probes: set[tuple[Namespace, Ids]] = set()  # whatever was ever stored

    def try_acquire(
        self, namespace: Namespace, ids: Ids, *, read: bool, store: bool
    ) -> Running | None:
        claim = self.reference.acquire(namespace, ids, read=read, store=store)
        expected = None if claim is None else len(claim.path)
        request = super().try_acquire(namespace, ids, read=read, store=store)
        if request is not None:
            request.claim = claim
        assert expected == (None if request is None else request.lease.cached_tokens)
        return request

    def try_extend(self, request: Running, ids: Ids) -> bool:
        assert request.claim is not None
        fits = len(ids) <= min(self.pool_blocks) * self.block
        expected = fits and self.reference.extend(request.claim, ids)
        done = super().try_extend(request, ids)
        assert done == expected
        return done

    def note_commit(self, request: Running) -> None:
        super().note_commit(request)
        assert request.claim is not None
        self.reference.commit(request.claim, request.ids)
        self.probes.add((request.lease.namespace, (*request.ids, 0)))

    @rule(request=consumes(TokenExactMachine.running), again=st.booleans())
    def release(self, request: Running, again: bool) -> None:
        super().release(request, again)
        assert request.claim is not None
        self.reference.release(request.claim)

    @rule(n_blocks=st.integers(0, 9))
    def evict(self, n_blocks: int) -> None:
        self.reference.evict(n_blocks, self.n_free)
        super().evict(n_blocks)

    @rule(scope=st.sampled_from(list(SCOPES)))
    def invalidate(self, scope: Scope) -> None:
        super().invalidate(scope)
        self.reference.invalidate(SCOPES[scope])

    @rule()
    def reclaim(self) -> None:
        super().reclaim()
        assert self.n_free == self.reference.available

    @rule(namespace=NAMES, ids=IDS)
    def look(self, namespace: Namespace, ids: Ids) -> None:
        super().look(namespace, ids)
        assert self.cache.match_length(namespace, pack(ids)) == self.reference.match(namespace, ids)

    @invariant()
    def exactly_the_blocks_of_the_reference_are_found(self) -> None:
        for namespace, ids in self.probes:
            found = self.cache.match_length(namespace, pack(ids))
            assert found == self.reference.match(namespace, ids)

    @invariant()
    def the_counts_are_those_of_the_reference(self) -> None:
        for counts, n_blocks in zip(self.all_counts(), self.pool_blocks, strict=True):
            assert counts.held == self.reference.held
            assert counts.free + counts.cached == n_blocks - self.reference.held


class NoGrowthMachine(ReferenceMachine):
    """The same in two groups, where requests take only what they ask for."""

    pool_blocks = (6, 12)
    growth_blocks = 0


@pytest.mark.parametrize("machine", [TokenExactMachine, ReferenceMachine, NoGrowthMachine])
def test_the_index_equals_plain_structures(machine: type[TokenExactMachine]) -> None:
    """No order of calls gives a wrong hit, a lost lease, a wrong count or a missed hit."""
    run_machine(machine, 150)


@pytest.mark.parametrize("policy", POLICY_NAMES[1:])
def test_no_policy_makes_the_index_lie(policy: str) -> None:
    """Whatever goes first, hits are honest, leases are safe and the books balance."""
    run_machine(type("Machine", (TokenExactMachine,), {"policy": policy}), 20)
