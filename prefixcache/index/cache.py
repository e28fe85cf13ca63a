"""The index: who has which prefix, in which blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from prefixcache.errors import ConfigError
from prefixcache.index.accounts import SYSTEM_TENANT, Quota, Shares
from prefixcache.index.admission import BlockCopy
from prefixcache.index.ahead import Ahead
from prefixcache.index.block_format import BlockFormat
from prefixcache.index.books import check_books
from prefixcache.index.compaction import Compaction
from prefixcache.index.copies import Copies
from prefixcache.index.core import Core
from prefixcache.index.events import Observer
from prefixcache.index.inflight import Waiter
from prefixcache.index.lease import Lease
from prefixcache.index.locations import LowerTier
from prefixcache.index.misses import Miss
from prefixcache.index.namespaces import Namespace, Scope
from prefixcache.index.policies import EvictionPolicy, LruPolicy
from prefixcache.index.prompts import PublishedPrompts
from prefixcache.index.report import Report
from prefixcache.index.snapshot import Snapshot
from prefixcache.index.stats import CacheStats, NamespaceStats, TenantStats
from prefixcache.index.tokens import TOKEN_BYTES, Packed, n_tokens
from prefixcache.index.twins import Twins
from prefixcache.types import PoolCounts


class PrefixCache:
    """A radix tree over token ids per namespace, and the blocks with their KV.

    The life of a request: `acquire` pins the longest stored prefix and takes blocks for the rest
    of the prompt, `extend` takes more while it grows, `commit` makes full blocks matchable
    once their KV is written, `release` ends it.

    When blocks run short they come, in this order, from the free ones, from what was invalidated,
    from the victims of the tenant furthest over its fair share, from the growth slack of other
    leases, and from retained prefixes. If all that is not enough a call raises and has taken
    nothing. Only full blocks enter the tree, and a look-up leaves a token of a prompt to compute.

    `prompts` are prefixes that tenants share; `twins` is for requests that wait for each other;
    `copies` is what lies in a lower tier; `ahead` guesses what a request goes on with;
    `compaction` brings together what lies in short runs.

    Calls are made one at a time, from whichever thread; `counts`, `longest_free_run` and `stats`
    may be called from any thread at any moment. No call waits for anything but the hooks
    (`copy_block`, the lower tier, observers): these may look, and are refused any change.
    Who owns a block when: prefixcache/design/0001-block-ownership.md.

    Args:
        pool_blocks: blocks of each layer group's pool.
        windows: each group's sliding window in tokens, a token's own included; None: the group
            keeps all positions. At least one does. Blocks of window groups are had by
            `slide`, and reuse is by whole blocks then.
        leads: how many tokens at the start of a prompt each group keeps though its window has
            passed them; None: no group keeps any. Only groups with a window may.
        growth_blocks: `extend` takes this many at a time while they are free.
        token_exact_reuse: where a prompt leaves a block midway, copy the tokens it shares.
        policy: makes what chooses among a tenant's prefixes that nobody uses, one per tenant.
        quotas: by tenant; who is not named may have all and is promised nothing.
        published_quota: the published prompts' share; None: at most a quarter of the pool.
            Give them a reserve where tenants have one: blocks of theirs that requests use
            come out of what nobody has reserved otherwise.
        retained_blocks: how many of its blocks a tenant may retain; None: a quarter of all.
        copy_block: makes such a copy before it returns; None: no KV is behind the blocks.
        lower_tier: asked for each prefix that is to be given up whether it keeps a copy.
        clock: seconds, never falling; for lifetimes and policies.

    Raises:
        ConfigError: a number is out of range, or the reserves are more than the pool.
    """

    def __init__(
        self,
        *,
        pool_blocks: Sequence[int],
        windows: Sequence[int | None] | None = None,
        leads: Sequence[int] | None = None,
        block_size_tokens: int = 16,
        growth_blocks: int = 8,
        token_exact_reuse: bool = True,
        policy: Callable[[], EvictionPolicy] = LruPolicy,
        quotas: Mapping[str, Quota] | None = None,
        published_quota: Quota | None = None,
        retained_blocks: int | None = None,
        copy_block: Callable[[BlockCopy], None] | None = None,
        lower_tier: LowerTier | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if growth_blocks < 0:
            raise ConfigError("growth_blocks", growth_blocks, "must be at least 0")
        windows = windows or [None] * len(pool_blocks)
        leads = leads or [0] * len(pool_blocks)
        block = BlockFormat(block_size_tokens, token_exact_reuse)
        shares = Shares(quotas or {}, published_quota, retained_blocks)
        core = Core(pool_blocks, windows, leads, block, policy, shares, lower_tier, copy_block)
        self.block_size_tokens = block_size_tokens
        self._growth_blocks = growth_blocks
        self._clock = clock
        self._core = core
        self._pools, self._accounts, self._forest = core.pools, core.accounts, core.forest
        self._leases, self._room, self._keeper = core.leases, core.room, core.keeper
        self._admission, self._committer = core.admission, core.committer
        self._in_flight, self._observers = core.in_flight, core.observers
        self.prompts = PublishedPrompts(core, clock=clock)
        self.twins = Twins(core)
        self.copies = Copies(core)
        self.ahead = Ahead(core)
        self.compaction = Compaction(core)
        self._report = Report(core)
        self._double_releases = 0

    def match_length(self, namespace: Namespace, tokens: Packed) -> int:
        """Return how many leading tokens a request could reuse now. Changes nothing.

        Under pressure `acquire` may reuse less: it does without a copy that there is no room for.
        Cost: one comparison of memory over what matches, and a hash or two per node.
        """
        root = self._forest.root_to_look_in(namespace)
        match, _ = self._admission.find(root, tokens, n_tokens(tokens) - 1)
        return self._admission.tokens_of(match)

    def explain(self, namespace: Namespace, tokens: Packed) -> Miss | None:
        """Return why a request could not reuse more now, None when it could. Changes nothing."""
        root = self._forest.root_to_look_in(namespace)
        end = n_tokens(tokens) - 1
        match, _ = self._admission.find(root, tokens, end)
        return self._admission.miss(root, match, tokens, end)

    def acquire(
        self,
        namespace: Namespace,
        tokens: Packed,
        *,
        room_tokens: int = 0,
        read: bool = True,
        store: bool = True,
        priority: int = 0,
        waiter: Waiter | None = None,
    ) -> Lease:
        """Claim the longest stored prefix of a prompt, and blocks for all the rest of it.

        Args:
            tokens: the prompt, packed, at least one token.
            room_tokens: make room for so many tokens after the prompt as well.
            read: False: nothing is looked up; everything will be computed.
            store: False: `commit` stores nothing.
            priority: what it used is worth more to policies that weigh it.
            waiter: the wait for a twin that ends with this.

        Raises:
            EmptyPromptError: there is no token.
            RequestTooLargeError: it cannot fit even when nothing else runs.
            PoolExhaustedError: it does not fit now. Nothing is taken or touched.
            TokenIdError: `tokens` ends in half a token.
            ConfigError: the tenant is the published prompts' own, or `room_tokens` is below 0.

        Cost: the match, the nodes on its path, and O(log n) per node given up.
        """
        if namespace.tenant == SYSTEM_TENANT:
            raise ConfigError("tenant", namespace.tenant, "is the published prompts' own")
        now = self._clock()
        lease = self._admission.acquire(namespace, tokens, room_tokens, now, read, store, priority)
        if waiter is not None:
            self._in_flight.leave(waiter, lease)
        return lease

    def extend(self, lease: Lease, n_tokens: int, *, most_tokens: int | None = None) -> None:
        """Make room for `n_tokens` tokens in all.

        Takes `growth_blocks` at a time, so that runs stay long, where that keeps within what the
        tenant may have; else exactly what is needed.

        Args:
            most_tokens: the request will never have more in all, so nothing is taken beyond;
                None: not known.

        Raises:
            RequestTooLargeError, PoolExhaustedError: as `acquire`; the lease is unchanged.
            LeaseError: it was released.
        """
        self._leases.require_live(lease)
        account = lease.account
        n_needed = max(self._admission.blocks_for(n_tokens, account), lease.n_needed)
        self._room.require(account, n_needed - lease.n_needed)
        missing = n_needed - lease.n_blocks
        if missing > 0:
            self._leases.resize(lease, lease.n_blocks, lease.n_blocks)
            portion = max(missing, self._growth_blocks)
            if most_tokens is not None:
                most_missing = self._admission.blocks_for(most_tokens, account) - lease.n_blocks
                portion = max(missing, min(portion, most_missing))
            if not self._accounts.may_grow_ahead(account, portion):
                portion = missing
            self._room.take(lease, portion, self._clock())
        self._leases.resize(lease, lease.n_blocks, n_needed)

    def slide(self, lease: Lease, start: int, stop: int) -> None:
        """Have room in the window groups for the tokens from `start` up to `stop`, which come next.

        What none of them sees is let go of: the lease's own blocks are free, the tree's are cached.
        Without window groups nothing happens.

        Raises:
            PoolExhaustedError: a window group has too little room. Nothing more is held.
            LeaseError: the lease was released.
        """
        self._leases.require_live(lease)
        if lease.window_hold is not None:
            hold, node = lease.window_hold, lease.node
            self._core.windows.slide(hold, node, start, stop, self._keeper.reclaim)

    def commit(self, lease: Lease, tokens: Packed) -> None:
        """Make the full blocks of a request matchable.

        Where an equal request has stored the same blocks meanwhile, the lease takes over the
        tree's and gives its own back. Nothing is stored when something that the lease was made
        under has been invalidated since.

        Args:
            tokens: every token whose KV is written, packed, from position 0.

        Raises:
            LeaseError: it was released, or `tokens` is more than it has room for.
            TokenIdError: `tokens` ends in half a token.

        Cost: the blocks that are new, for the walk starts at the lease's own node.
        """
        if lease.book is not self._leases:
            self._leases.require_live(lease)
        length = len(tokens) // TOKEN_BYTES
        n_full = length // self.block_size_tokens
        if length > lease.n_needed * self.block_size_tokens or len(tokens) % TOKEN_BYTES:
            self._leases.use_slack(lease, tokens)
        if lease.window_hold is not None:
            self._leases.require_window_room(lease, length)
        is_current = lease.anchor is lease.root and lease.root.checked_epoch == self._forest.epoch
        if not (lease.stores and (is_current or self._forest.is_storable(lease.anchor))):
            lease.n_written = 0
            if self._in_flight.waiters:
                self._in_flight.ended(lease)  # those who wait for it would wait in vain
            return
        now = self._clock()
        if n_full > lease.n_stored:
            self._committer.store(lease, tokens, n_full, now)
        if lease.published is not None:
            self._committer.finish_prompt(lease, lease.published, length, now)
        if self._in_flight.waiters:
            self._in_flight.moved(lease)

    def release(self, lease: Lease) -> None:
        """End a claim: what is the tree's stays cached, the lease's own blocks are free.

        Releasing twice is harmless, and counted.

        Raises:
            LeaseError: the lease is another cache's.

        Cost: the nodes that nobody pins any more.
        """
        if lease.book is not self._leases:
            if lease.book is None:
                self._double_releases += 1
                return
            self._leases.require_live(lease)
        if self._in_flight.waiters:
            self._in_flight.ended(lease)
        self._admission.let_go(lease, self._clock())

    def retain(self, lease: Lease, n_tokens: int, *, seconds: float, priority: int = 0) -> int:
        """Keep the first `n_tokens` tokens of a request cached for some time; return how many.

        They outlast all traffic that can do without their blocks, but no request is refused for
        them. Only stored whole blocks are kept; what belongs to a published prompt is kept
        by the system, and what was invalidated is not kept. Beyond the tenant's budget, what has
        the lowest priority gives way, and of that what would end first.

        Raises:
            LeaseError: the lease was released.
            ConfigError: `seconds` is not above 0.
        """
        self._leases.require_live(lease)
        if not seconds > 0:
            raise ConfigError("seconds", seconds, "must be above 0; without it nothing is retained")
        n_blocks = min(n_tokens // self.block_size_tokens, lease.n_stored)
        n_kept = self._core.retainer.retain(lease, n_blocks, self._clock() + seconds, priority)
        return n_kept * self.block_size_tokens

    def evict(self, n_blocks: int) -> int:
        """Give up at most `n_blocks` cached blocks of each layer group; return how many went.

        What was invalidated goes first, then victims, tail blocks before the blocks that they
        depend on, and retained prefixes last. Cost: O(log n) per node given up.
        """
        return self._room.make(n_blocks, self._clock(), asking=None)

    def reclaim(self) -> int:
        """Free what was invalidated or is overdue and that no lease holds; return how many blocks.

        Never needed, for it goes first under pressure; it makes the counts show it. Cost: what
        is left of those trees.
        """
        return self._keeper.reclaim(None) + self.expire()

    def expire(self) -> int:
        """Give up what policies say is overdue, though there is room; return how many blocks.

        Retentions that have ended are dropped as well. Cost: the tenants, and what goes.
        """
        now = self._clock()
        self._core.retentions.expire(now)
        return self._keeper.expire(self._accounts, now)

    def invalidate(self, scope: Scope) -> None:
        """Make everything stored in `scope` unmatchable, and everything running in it unstorable.

        O(1). Running requests keep their blocks until they are released.
        """
        self._forest.invalidate(scope)
        if self._observers.all:
            self._observers.cleared(scope)

    def set_quota(self, tenant: str, quota: Quota) -> None:
        """Change what a tenant is promised and may have at most; it takes effect as room is needed.

        Raises:
            ConfigError: the reserves of all are more than the pool. Nothing changes.
        """
        self._accounts.set_quota(tenant, quota)

    def set_quotas(self, quotas: Mapping[str, Quota]) -> None:
        """Give tenants these quotas, and all others the default. Raises as `set_quota`."""
        self._accounts.set_quotas(quotas)

    def holds_beyond_reserve(self, tenant: str) -> bool:
        """Return whether what a tenant's requests hold would be others' if they ended. O(1)."""
        account = self._accounts.find(tenant)
        return account.n_held - account.n_slack > account.reserved_blocks

    def subscribe(self, observer: Observer) -> None:
        """Tell `observer` of what is stored and removed from now on."""
        self._observers.add(observer)

    def unsubscribe(self, observer: Observer) -> None:
        """Tell `observer` no more."""
        self._observers.remove(observer)

    def counts(self, group: int = 0) -> PoolCounts:
        """Return the blocks of one layer group by state. O(1)."""
        return self._report.counts(group)

    def longest_free_run(self, group: int = 0) -> int:
        """Return the most consecutive free blocks of one layer group. Cost: its longest runs."""
        return self._report.longest_free_run(group)

    @property
    def evicted_blocks(self) -> int:
        """Blocks that were given up by a policy's choice, of each layer group. O(1)."""
        return self._keeper.evicted_blocks

    def stats(self) -> CacheStats:
        """Return the counters as of now. Cost: the tenants and trees."""
        return self._report.stats(self._double_releases)

    def tenant_stats(self, tenant: str) -> TenantStats:
        """Return one tenant's blocks, quota and counters. Cost: the trees."""
        return self._report.tenant(tenant)

    def tenants(self) -> list[TenantStats]:
        """Return the numbers of every tenant that was ever seen. Cost: tenants and trees."""
        return self._report.tenants()

    def namespace_stats(self) -> list[NamespaceStats]:
        """Return the counters of every namespace that has something stored or running."""
        return self._report.namespaces()

    def snapshot(self, *, max_nodes: int = 1000, tenant: str | None = None) -> Snapshot:
        """Return the trees as data, at most `max_nodes` nodes of them, the roots' side first.

        Args:
            tenant: one tenant's trees alone.

        Cost: `max_nodes`, and the number of trees.
        """
        return self._report.snapshot(max_nodes, tenant, self._clock())

    def check(self) -> None:
        """Prove that trees, leases and pools agree. Raises BooksError with what differs.

        Cost: everything there is. For tests, and for a look at a sick server.
        """
        check_books(self._core)
