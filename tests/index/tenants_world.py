"""A tiny cache with everything going on in it, and what has to hold at any moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant

from prefixcache.errors import PoolExhaustedError, PromptRetiredError, RequestTooLargeError
from prefixcache.index import (
    Generations,
    Lease,
    LowerTier,
    Namespace,
    PrefixCache,
    Published,
    Quota,
    Scope,
    Waiter,
    pack,
)
from prefixcache.index.nodes import Mount
from prefixcache.types import BlockId
from tests.index.compacting import Compacting
from tests.index.fake_kv import Entry, FakeKV, blocks_of
from tests.index.room_reference import Room
from tests.index.tenants_reference import Ids, TenantsReference, is_for, n_shared, system_of


@dataclass(eq=False)
class Running:
    """A request, or the system's reading of a prompt. Its first `n_written` ids have KV."""

    lease: Lease
    ids: Ids
    stores: bool  # and nothing that it depends on was invalidated or retired
    shared: Entry | None = None  # published KV that it may read
    published: Published | None = None  # which it reads for the system
    n_written: int = 0
    n_committed: int = 0
    is_found: bool = True  # what it committed must be found by others
    blocks: list[list[BlockId]] = field(default_factory=list)  # it was promised, by layer group

    @property
    def mount(self) -> tuple[Published, int] | None:
        """The published prompt that its path begins with, and for how many blocks."""
        anchor = self.lease.anchor
        return (anchor.published, anchor.end_block) if isinstance(anchor, Mount) else None


Waiting = tuple[Waiter, Namespace, Ids]


class TenantsWorld(RuleBasedStateMachine):
    """Several tenants, published prompts, retention, twins and generations in a tiny pool."""

    block = 2
    pool_blocks: tuple[int, ...] = (16, 14)
    growth_blocks = 2
    token_exact = True
    budget = 4
    quotas: ClassVar[dict[str, Quota]] = {
        "u": Quota(reserved_blocks=4, max_blocks=8),
        "v": Quota(reserved_blocks=3, max_blocks=3),
    }
    published_quota: Quota | None = Quota(reserved_blocks=2, max_blocks=6)
    windows: tuple[int, ...] = ()  # of more layer groups
    leads: tuple[int, ...] = ()  # of these
    window_blocks: tuple[int, ...] = ()
    tier: LowerTier | None = None

    def __init__(self) -> None:
        super().__init__()
        self.kv = FakeKV(self.block, len(self.pool_blocks), self.windows, self.leads)
        self.now = 0.0
        self.cache = PrefixCache(
            pool_blocks=[*self.pool_blocks, *self.window_blocks],
            windows=[*[None] * len(self.pool_blocks), *self.windows],
            leads=[*[0] * len(self.pool_blocks), *(self.leads or [0] * len(self.windows))],
            block_size_tokens=self.block,
            growth_blocks=self.growth_blocks,
            token_exact_reuse=self.token_exact,
            quotas=self.quotas,
            published_quota=self.published_quota,
            retained_blocks=self.budget,
            copy_block=self.kv.copy_block,
            lower_tier=self.tier,
            clock=lambda: self.now,
        )
        self.compacting = Compacting(self.cache, self.kv, len(self.pool_blocks))
        self.live: list[Running] = []
        self.waiting: dict[Waiter, tuple[Namespace, Ids]] = {}
        self.bumps: Counter[Scope] = Counter()
        self.retained: dict[tuple[Namespace, Ids], float] = {}  # until when
        self.reference = TenantsReference(self.block, token_exact=self.token_exact)
        self.room = Room(self.cache, self.pool_blocks, self.block)

    def start(
        self,
        namespace: Namespace,
        ids: Ids,
        *,
        read: bool = True,
        store: bool = True,
        priority: int = 0,
        waiter: Waiter | None = None,
    ) -> Running | None:
        tokens = pack(ids)
        promised = self.cache.match_length(namespace, tokens) if read else 0
        lease = self.admit(
            namespace,
            len(ids),
            promised,
            lambda: self.cache.acquire(
                namespace, tokens, read=read, store=store, priority=priority, waiter=waiter
            ),
        )
        if lease is None:
            return None
        without_copy = promised // self.block * self.block  # if there is no room for one
        assert lease.cached_tokens in (promised, without_copy)
        assert lease.cached_tokens < len(ids)
        request = Running(lease, ids, store, self.shared_with(namespace, ids))
        self.enter(request)
        return request

    def admit(
        self, namespace: Namespace, length: int, promised: int | None, acquire: Callable[[], Lease]
    ) -> Lease | None:
        """Try to make a lease; it fails exactly when there is too little room."""
        n_hit = None if promised is None else promised // self.block
        room = self.room.before(namespace.tenant, length, n_hit, self.live_leases())
        kept = self.what_is_kept()
        before = self.room.state()
        try:
            lease = acquire()
        except RequestTooLargeError:
            assert room.is_too_large
            assert self.room.state() == before
            return None
        except PoolExhaustedError:
            assert not room.surely_fits
            assert not room.is_too_large
            assert self.room.state() == before
            return None
        assert room.may_fit
        self.room.assert_others_keep_their_reserves(namespace.tenant, [*self.live_leases(), lease])
        stats = self.cache.tenant_stats(namespace.tenant)
        assert stats.cached_blocks + stats.held_blocks <= stats.max_blocks
        if room.takes_no_retained and lease.cached_tokens % self.block == 0:
            self.assert_kept(kept)
        return lease

    def enter(self, request: Running) -> None:
        lease, ids = request.lease, request.ids
        self.kv.assert_holds(lease, ids[: lease.cached_tokens], request.shared)
        request.n_written = lease.cached_tokens
        self.note_blocks(request)
        self.live.append(request)

    def read(self, published: Published, *, at_once: bool) -> Running | None:
        """Have the system read a prompt."""
        ids = self.reference.prompts.get(published)
        if ids is None:
            with pytest.raises(PromptRetiredError):
                self.cache.prompts.acquire(published)
            return None
        most = self.reference.most_of_system(published.namespace, ids)
        lease = self.admit(
            published.namespace, len(ids), None, lambda: self.cache.prompts.acquire(published)
        )
        if lease is None:
            return None
        assert lease.cached_tokens <= most
        if not self.has_evicted:
            assert self.cache.prompts.is_read(published) >= (published in self.reference.finished)
        request = Running(lease, ids, True, published=published)
        self.enter(request)
        if at_once:
            self.commit_up_to(request, len(ids))
            is_written = request.n_written == len(ids)
            assert self.cache.prompts.is_read(published) >= is_written
        return request

    def try_to_wait(self, namespace: Namespace, ids: Ids, priority: int) -> Waiting | None:
        """Wait for whoever computes more of `ids` than is cached."""
        before = self.room.state()
        waiter = self.cache.twins.wait(namespace, pack(ids), priority=priority)
        assert self.room.state() == before
        if waiter is None:
            return None
        assert not waiter.is_ready
        assert waiter.leader is not None
        assert self.cache.twins.priority(waiter.leader) >= priority
        assert waiter.n_tokens > self.cache.match_length(namespace, pack(ids))
        assert waiter.n_tokens < len(ids)
        leader = next(request for request in self.live if request.lease is waiter.leader)
        assert n_shared(leader.ids, ids) >= waiter.n_tokens
        if leader.published is None:
            assert leader.lease.namespace == namespace
        else:
            assert is_for(leader.published, namespace.tenant) or self.is_for_any(ids, namespace)
        self.waiting[waiter] = namespace, ids
        return waiter, namespace, ids

    def commit_up_to(self, request: Running, n_tokens: int) -> None:
        n_tokens = self.compute(request, n_tokens)
        followers = [w for w in self.waiting if w.leader is request.lease]
        self.cache.commit(request.lease, pack(request.ids[:n_tokens]))
        self.note_blocks(request)
        for waiter in followers:
            if waiter.is_ready and request.stores:
                self.assert_served(waiter, request)
        n_full = n_tokens // self.block * self.block
        if request.published is not None:
            if request.stores:
                self.reference.store_published(request.published, request.ids[:n_tokens])
        elif request.stores and n_full > request.n_committed:
            request.n_committed = n_full
            namespace = request.lease.namespace
            self.reference.store(namespace, request.ids[:n_full], request.mount)

    def compute(self, request: Running, n_tokens: int) -> int:
        """Write a request's KV up to `n_tokens`, if there is room; return how many can be used."""
        if n_tokens > request.n_written:
            self.kv.write(request.lease, request.ids[:n_tokens], request.n_written)
            request.n_written = n_tokens
        return n_tokens

    def end(self, request: Running) -> None:
        self.live.remove(request)
        mount = request.mount
        self.cache.release(request.lease)
        assert request.lease.spans(0) == ()
        if mount is not None and not mount[0].is_live:
            self.reference.forget_what_nothing_retains()

    def is_for_any(self, ids: Ids, namespace: Namespace) -> bool:
        return any(
            is_for(p, namespace.tenant) and n_shared(tokens, ids) >= self.block
            for p, tokens in self.reference.prompts.items()
        )

    def assert_served(self, waiter: Waiter, leader: Running) -> None:
        """Fail unless a waiter that was woken finds what it waited for."""
        namespace, ids = self.waiting[waiter]
        if leader.published is None or len(self.shared_with(namespace, ids)[2]) >= waiter.n_tokens:
            assert self.cache.match_length(namespace, pack(ids)) >= waiter.n_tokens

    def shared_with(self, namespace: Namespace, ids: Ids) -> Entry:
        """Return which published KV a request that starts now may read."""
        system = system_of(namespace)
        lengths = [
            n_shared(tokens, ids)
            for published, tokens in self.reference.prompts.items()
            if published.namespace == system and is_for(published, namespace.tenant)
        ]
        return system, self.generations(system), ids[: max(lengths, default=0)]

    def generations(self, namespace: Namespace) -> Generations:
        """Return how often each thing was invalidated."""
        adapter = namespace.adapter
        return Generations(
            self.bumps[Scope.model(namespace.model)],
            0 if adapter is None else self.bumps[Scope.adapter(adapter)],
            self.bumps[Scope.tenant(namespace.tenant)],
            self.bumps[Scope.namespace(namespace)],
        )

    def what_is_kept(self) -> dict[tuple[Namespace, Ids], int]:
        """Return how much is found of each prefix that is retained and has not given way."""
        found = {key: self.found(*key) for key in self.retained}
        gone = [key for key, n_found in found.items() if n_found < len(key[1])]
        for key in gone:
            del found[key], self.retained[key]
        return found

    def assert_kept(self, kept: dict[tuple[Namespace, Ids], int]) -> None:
        """Fail if less is found of them."""
        for key, n_found in kept.items():
            assert self.found(*key) >= n_found

    def found(self, namespace: Namespace, ids: Ids) -> int:
        """Return how much of `ids` is found, up to the last of them."""
        return self.cache.match_length(namespace, pack([*ids, 9]))

    def note_blocks(self, request: Running) -> None:
        """Remember the blocks that are promised to a request."""
        n_groups, n_needed = len(self.pool_blocks), request.lease.n_needed
        request.blocks = [blocks_of(request.lease, g)[:n_needed] for g in range(n_groups)]

    def live_leases(self) -> list[Lease]:
        """Return the leases that were not released."""
        return [request.lease for request in self.live]

    @property
    def has_evicted(self) -> bool:
        """Whether anything ever gave way."""
        return self.cache.stats().evicted_blocks > 0

    @invariant()
    def the_books_balance(self) -> None:
        self.cache.check()

    @invariant()
    def what_runs_keeps_its_blocks_and_its_kv(self) -> None:
        for request in self.live:
            lease = request.lease
            self.kv.assert_holds(lease, request.ids[: request.n_written], request.shared)
            for group, blocks in enumerate(request.blocks):
                assert blocks_of(lease, group)[: len(blocks)] == blocks

    @invariant()
    def what_a_live_request_stored_is_found(self) -> None:
        for request in self.live:
            if request.stores and request.is_found:
                stored = request.ids[: request.n_committed]
                assert self.found(request.lease.namespace, stored) >= len(stored)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        leases = set(self.live_leases())
        asleep = [waiter for waiter in self.waiting if not waiter.is_ready]
        for waiter in asleep:
            assert waiter.leader in leases or waiter.heir in self.waiting
            assert waiter.heir is None or waiter.heir.is_ready
        assert not asleep or leases or len(asleep) < len(self.waiting)
