"""Whatever tenants, the system and time do in whatever order: hits, room and books are right."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    consumes,
    multiple,
    rule,
)

from prefixcache.errors import ConfigError, PoolExhaustedError, RequestTooLargeError
from prefixcache.index import (
    SYSTEM_TENANT,
    Namespace,
    Published,
    Quota,
    Scope,
    pack,
    unpack,
)
from tests.index.machines import run_machine
from tests.index.tenants_reference import (
    Ids,
    is_in,
    system_of,
)
from tests.index.tenants_world import Running, TenantsWorld, Waiting

NAMESPACES = [
    Namespace(tenant="t"),
    Namespace(tenant="t", salt="s"),
    Namespace(tenant="t", adapter="x"),
    Namespace(tenant="u"),
    Namespace(tenant="u", adapter="x"),
    Namespace(tenant="v"),
]
SCOPES = [
    Scope.model("default"),
    Scope.adapter("x"),
    *(Scope.tenant(name) for name in ("t", "u", SYSTEM_TENANT)),
    Scope.namespace(NAMESPACES[1]),
    Scope.namespace(system_of(NAMESPACES[0])),
]
QUOTAS = [
    ("t", Quota()),
    ("t", Quota(reserved_blocks=2, max_blocks=9)),
    ("u", Quota(reserved_blocks=4)),
    ("u", Quota(reserved_blocks=2, max_blocks=5)),
    ("v", Quota(reserved_blocks=3, max_blocks=3)),
    (SYSTEM_TENANT, Quota(reserved_blocks=4, max_blocks=4)),
    (SYSTEM_TENANT, Quota(max_blocks=6)),
]
AUDIENCES = [None, None, frozenset({"t"}), frozenset({"u", "v"}), frozenset[str]()]
NAMES = st.sampled_from(NAMESPACES)
BITS = st.lists(st.integers(0, 1), max_size=5).map(tuple)
IDS = st.builds(lambda n_zeros, rest: (0,) * n_zeros + rest, st.integers(1, 6), BITS)


class TenantsMachine(TenantsWorld):
    """Whatever happens in whatever order."""

    running = Bundle("running")
    prompts = Bundle("prompts")
    waiters = Bundle("waiters")

    @rule(
        target=running,
        namespace=NAMES,
        ids=IDS,
        read=st.sampled_from([True, True, False]),
        store=st.sampled_from([True, True, False]),
        priority=st.integers(0, 2),
    )
    def acquire(
        self, namespace: Namespace, ids: Ids, read: bool, store: bool, priority: int
    ) -> Running | MultipleResults[Running]:
        request = self.start(namespace, ids, read=read, store=store, priority=priority)
        return multiple() if request is None else request

    @rule(target=running, namespace=NAMES, published=prompts, more=BITS, at_once=st.booleans())
    def acquire_behind(
        self, namespace: Namespace, published: Published, more: Ids, at_once: bool
    ) -> Running | MultipleResults[Running]:
        ids = tuple(unpack(published.tokens)) + more
        request = self.start(namespace, ids)
        if request is None:
            return multiple()
        if at_once:
            self.commit_up_to(request, len(ids))
        return request

    @rule(target=running, namespace=NAMES, ids=IDS)
    def acquire_and_commit(
        self, namespace: Namespace, ids: Ids
    ) -> Running | MultipleResults[Running]:
        request = self.start(namespace, ids)
        if request is None:
            return multiple()
        self.commit_up_to(request, len(ids))
        return request

    @rule(namespace=NAMES, ids=IDS)
    def run_to_the_end(self, namespace: Namespace, ids: Ids) -> None:
        request = self.start(namespace, ids)
        if request is not None:
            self.commit_up_to(request, len(ids))
            self.end(request)

    @rule(request=running, more=BITS)
    def extend(self, request: Running, more: Ids) -> None:
        if request not in self.live or request.published is not None:
            return
        ids, lease = request.ids + more, request.lease
        n_more = max(-(-len(ids) // self.block) - lease.n_needed, 0)
        fits = self.room.fits(lease.namespace.tenant, n_more, 0, self.live_leases())
        is_too_large = self.room.is_too_large(lease.namespace.tenant, len(ids))
        before = self.room.state(), lease.spans(0), lease.n_slack
        kept = self.what_is_kept()
        takes_no_retained = not self.growth_blocks and self.room.is_given_by_traffic(
            lease.namespace.tenant, n_more, 0
        )
        try:
            self.cache.extend(lease, len(ids))
        except RequestTooLargeError:
            assert is_too_large
        except PoolExhaustedError:
            assert not is_too_large
            assert not fits
        else:
            assert fits
            assert not is_too_large
            assert lease.capacity_tokens >= len(ids)
            self.room.assert_others_keep_their_reserves(lease.namespace.tenant, self.live_leases())
            if takes_no_retained:
                self.assert_kept(kept)
            request.ids = ids
            self.note_blocks(request)
            return
        assert before == (self.room.state(), lease.spans(0), lease.n_slack)

    @rule(n_pieces=st.integers(1, 30), short_blocks=st.integers(1, 3), least_hits=st.integers(0, 1))
    def compact(self, n_pieces: int, short_blocks: int, least_hits: int) -> None:
        self.compacting.go_on(n_pieces, short_blocks, least_hits)

    @rule(request=running, n_tokens=st.integers(1, 12))
    def commit(self, request: Running, n_tokens: int) -> None:
        if request in self.live:
            self.commit_up_to(request, min(n_tokens, len(request.ids)))

    @rule(request=running)
    def commit_all(self, request: Running) -> None:
        if request in self.live:
            self.commit_up_to(request, len(request.ids))

    @rule(request=consumes(running), again=st.booleans())
    def release(self, request: Running, again: bool) -> None:
        if request in self.live:
            self.end(request)
        if again:
            doubles = self.cache.stats().double_releases
            self.cache.release(request.lease)
            assert self.cache.stats().double_releases == doubles + 1

    @rule(
        target=prompts,
        ids=IDS.filter(lambda ids: len(ids) >= 2),
        tenants=st.sampled_from(AUDIENCES),
        like=st.sampled_from(NAMESPACES[:3]),
        name=st.sampled_from("ab"),
    )
    def publish(
        self, ids: Ids, tenants: frozenset[str] | None, like: Namespace, name: str
    ) -> Published | MultipleResults[Published]:
        place = system_of(like), name
        others = [p for p in self.reference.prompts if (p.namespace, p.name) == place]
        if len(ids) < self.block:
            return multiple()
        published = self.cache.prompts.publish(name, pack(ids), tenants=tenants, like=like)
        assert all(published.version > other.version for other in others)
        self.reference.publish(published)
        return published

    @rule(target=running, published=prompts, at_once=st.booleans())
    def read_prompt(
        self, published: Published, at_once: bool
    ) -> Running | MultipleResults[Running]:
        request = self.read(published, at_once=at_once)
        return multiple() if request is None else request

    @rule(published=prompts)
    def read_prompt_to_the_end(self, published: Published) -> None:
        request = self.read(published, at_once=True)
        if request is not None:
            self.end(request)

    @rule(published=prompts)
    def retire(self, published: Published) -> None:
        before = self.room.n_held
        self.cache.prompts.retire(published)
        assert self.room.n_held == before
        self.reference.retire(published)
        for request in self.live:
            if request.mount is not None and request.mount[0] is published:
                request.stores = request.is_found = False

    @rule(scope=st.sampled_from(SCOPES))
    def invalidate(self, scope: Scope) -> None:
        before = self.room.state()
        self.cache.invalidate(scope)
        assert before == self.room.state()
        self.bumps[scope] += 1
        self.reference.invalidate(scope)
        for request in self.live:
            namespace = request.lease.namespace
            if is_in(namespace, scope):
                request.stores = request.is_found = False
            if is_in(system_of(namespace), scope) and request.mount is not None:
                request.stores = request.is_found = False
        gone = [key for key in self.retained if is_in(key[0], scope)]
        for key in gone:
            del self.retained[key]

    @rule(
        request=running,
        n_tokens=st.integers(1, 12),
        seconds=st.sampled_from([10, 100]),
        priority=st.integers(0, 1),
    )
    def retain(self, request: Running, n_tokens: int, seconds: int, priority: int) -> None:
        if request not in self.live or request.published is not None:
            return
        namespace, n_stored = request.lease.namespace, request.lease.n_stored * self.block
        before = self.cache.tenant_stats(namespace.tenant).retained_blocks
        kept = self.cache.retain(request.lease, n_tokens, seconds=seconds, priority=priority)
        after = self.cache.tenant_stats(namespace.tenant).retained_blocks
        assert after <= max(self.budget, before)
        assert kept <= min(n_tokens, n_stored) // self.block * self.block
        assert request.stores or not request.lease.stores or not kept
        if before + n_tokens // self.block > self.budget:
            for key in [key for key in self.retained if key[0].tenant == namespace.tenant]:
                del self.retained[key]
        if kept and request.mount is None and request.lease.stores:
            key = namespace, request.ids[:kept]
            self.retained[key] = max(self.retained.get(key, 0.0), self.now + seconds)

    @rule(seconds=st.integers(1, 60))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.retained = {key: end for key, end in self.retained.items() if end > self.now}

    @rule(n_blocks=st.integers(0, 9))
    def evict(self, n_blocks: int) -> None:
        before = self.cache.counts()
        freed = self.cache.evict(n_blocks)
        assert freed == min(n_blocks, before.cached)
        assert (self.cache.counts().free, self.room.n_held) == (before.free + freed, before.held)
        self.retained.clear()

    @rule()
    def reclaim(self) -> None:
        free = self.cache.counts().free
        assert self.cache.reclaim() == self.cache.counts().free - free
        assert self.cache.reclaim() == 0
        assert all(tree.is_current or all(n.pins for n in tree.nodes) for tree in self.room.trees())

    @rule(quota=st.sampled_from(QUOTAS))
    def set_quota(self, quota: tuple[str, Quota]) -> None:
        try:
            self.cache.set_quota(*quota)
        except ConfigError:
            others = sum(
                self.cache.tenant_stats(tenant).reserved_blocks
                for tenant in ("t", "u", "v", SYSTEM_TENANT)
                if tenant != quota[0]
            )
            assert others + quota[1].reserved_blocks > min(self.pool_blocks)

    @rule(target=waiters, namespace=NAMES, ids=IDS, priority=st.integers(0, 2))
    def wait(
        self, namespace: Namespace, ids: Ids, priority: int
    ) -> Waiting | MultipleResults[Waiting]:
        waiting = self.try_to_wait(namespace, ids, priority)
        return multiple() if waiting is None else waiting

    @rule(target=waiters, request=running, name=NAMES, more=BITS, priority=st.integers(0, 2))
    def wait_for(
        self, request: Running, name: Namespace, more: Ids, priority: int
    ) -> Waiting | MultipleResults[Waiting]:
        namespace = name if request.published is not None else request.lease.namespace
        waiting = self.try_to_wait(namespace, request.ids + more, priority)
        return multiple() if waiting is None else waiting

    @rule(target=running, who=consumes(waiters), early=st.booleans())
    def go_on(self, who: Waiting, early: bool) -> Running | MultipleResults[Running]:
        waiter, namespace, ids = who
        request = None
        if waiter.is_ready or early:
            request = self.start(namespace, ids, priority=waiter.priority, waiter=waiter)
        if request is None:
            self.cache.twins.leave(waiter)
            self.cache.twins.leave(waiter)
        del self.waiting[waiter]
        return multiple() if request is None else request

    @rule(namespace=NAMES, ids=IDS)
    def look(self, namespace: Namespace, ids: Ids) -> None:
        found = self.cache.match_length(namespace, pack(ids))
        assert found <= self.reference.most(namespace, ids)
        if not self.has_evicted:
            assert found >= self.reference.least(namespace, ids)
        miss = self.cache.explain(namespace, pack(ids))
        assert (miss is None) == (found == len(ids) - 1)


class WholeBlockMachine(TenantsMachine):
    """The same with whole blocks, one group, no growth ahead and no reserve for the system."""

    pool_blocks = (13,)
    growth_blocks = 0
    token_exact = False
    published_quota = None


class OpenMachine(TenantsMachine):
    """The same where nobody has a quota but the system, whose maximum is the pool."""

    block = 3
    pool_blocks = (9, 12)
    quotas: ClassVar[dict[str, Quota]] = {}
    published_quota = Quota(max_blocks=9)


@pytest.mark.parametrize("machine", [TenantsMachine, WholeBlockMachine, OpenMachine])
def test_tenants_get_what_plain_structures_say(machine: type[TenantsMachine]) -> None:
    """No order of calls gives a wrong or missed hit, wrong room or a lost block."""
    run_machine(machine, 100)
