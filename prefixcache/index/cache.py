"""The index: who has which prefix, in which blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from prefixcache.errors import ConfigError, EmptyPromptError, LeaseError, RequestTooLargeError
from prefixcache.index.books import check_books
from prefixcache.index.committer import Committer
from prefixcache.index.forest import Forest
from prefixcache.index.groups import GroupPools
from prefixcache.index.keeper import Keeper
from prefixcache.index.lease import Lease, LeaseBook
from prefixcache.index.namespaces import Namespace, Scope
from prefixcache.index.policies import EvictionPolicy, LruPolicy
from prefixcache.index.room import Room
from prefixcache.index.tokens import TOKEN_BYTES, n_tokens
from prefixcache.index.tree import Match, Node, Root, find, path_runs
from prefixcache.types import BlockId, PoolCounts


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """An order to copy the KV of the first `n_tokens` positions of one block to another."""

    group: int
    source: BlockId
    target: BlockId
    n_tokens: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counters since the cache was made; none ever falls."""

    lookups: int  # `acquire` calls that read
    lookup_tokens: int  # prompt tokens of those
    hit_tokens: int  # how many of them were cached
    evicted_blocks: int  # by the policy's choice; of each layer group
    reclaimed_blocks: int  # of invalidated trees; of each layer group
    double_releases: int


class PrefixCache:
    """A radix tree over token ids per namespace, and the blocks with their KV.

    The life of a request: `acquire` pins the longest stored prefix and takes blocks for the rest
    of the prompt, `extend` takes more while it grows, `commit` makes full blocks matchable
    once their KV is written, `release` ends it.

    When blocks run short they come, in this order, from the free ones, from invalidated trees,
    from the policy's victims, and from the growth slack of other leases. If all that is not
    enough a call raises and has taken nothing. Only full blocks enter the tree, and a look-up
    leaves at least one token of a prompt to compute.

    Not thread-safe: one thread makes all calls. No call waits for anything but `copy_block`.
    Who owns a block when: prefixcache/design/0001-block-ownership.md.
    """

    def __init__(
        self,
        *,
        pool_blocks: Sequence[int],
        block_size_tokens: int = 16,
        growth_blocks: int = 8,
        token_exact_reuse: bool = True,
        policy: EvictionPolicy | None = None,
        copy_block: Callable[[BlockCopy], None] | None = None,
    ) -> None:
        """Make an empty cache.

        Args:
            pool_blocks: blocks of each layer group's pool. All groups keep all positions.
            growth_blocks: `extend` takes this many at a time while they are free.
            token_exact_reuse: where a prompt leaves a block midway, copy the tokens it shares.
            policy: chooses among unpinned leaves; None: least recently used first.
            copy_block: makes such a copy before it returns; None: no KV is behind the blocks.

        Raises:
            ConfigError: a number is out of range.
        """
        if block_size_tokens < 1:
            raise ConfigError("block_size_tokens", block_size_tokens, "must be at least 1")
        if growth_blocks < 0:
            raise ConfigError("growth_blocks", growth_blocks, "must be at least 0")
        self.block_size_tokens = block_size_tokens
        self._block_bytes = block_size_tokens * TOKEN_BYTES
        self._growth_blocks = growth_blocks
        self._token_exact_reuse = token_exact_reuse
        self._copy_block = copy_block
        self._pools = GroupPools(pool_blocks)
        self._forest = Forest(self._pools.no_runs)
        self._keeper = Keeper(self._pools, self._forest, policy or LruPolicy(), self._block_bytes)
        self._leases = LeaseBook()
        self._room = Room(self._pools, self._keeper, self._leases)
        self._committer = Committer(self._pools, self._keeper, self._block_bytes)
        self._clock = 0  # counts uses; all that a release lets go was used at one moment
        self._lookups = self._lookup_tokens = self._hit_tokens = self._double_releases = 0

    def match_length(self, namespace: Namespace, tokens: bytes) -> int:
        """Return how many leading tokens a request could reuse now. Changes nothing.

        Under pressure `acquire` may reuse less: it does without a copy that there is no room for.
        Cost: one comparison of memory over what matches; per node one hash of a block.
        """
        root = self._forest.root_of(namespace)
        if root is None:
            return 0
        return self._tokens_of(self._find(root, tokens, n_tokens(tokens) - 1))

    def acquire(
        self,
        namespace: Namespace,
        tokens: bytes,
        *,
        room_tokens: int = 0,
        read: bool = True,
        store: bool = True,
    ) -> Lease:
        """Claim the longest stored prefix of a prompt, and blocks for all the rest of it.

        Args:
            tokens: the prompt, packed, at least one token.
            room_tokens: make room for so many tokens after the prompt as well.
            read: False: nothing is looked up; everything will be computed.
            store: False: `commit` stores nothing.

        Raises:
            EmptyPromptError: there is no token.
            RequestTooLargeError: it cannot fit even into the empty pool.
            PoolExhaustedError: it does not fit now. Nothing is taken or touched.
            TokenIdError: `tokens` ends in half a token.

        Cost: the match, the nodes on its path, and O(log n) per node given up.
        """
        length = n_tokens(tokens)
        if not length:
            raise EmptyPromptError
        n_blocks = self._blocks_for(length + room_tokens)
        root = self._forest.plant(namespace, self._keeper.new_id())
        try:
            match = self._find(root, tokens, length - 1) if read else Match(root, 0, 0)
            lease = self._admit(root, self._affordable(match, n_blocks), n_blocks, stores=store)
        finally:
            self._keeper.drop_if_empty(root)
        if read:
            self._lookups += 1
            self._lookup_tokens += length
            self._hit_tokens += lease.cached_tokens
        return lease

    def extend(self, lease: Lease, n_tokens: int, *, most_tokens: int | None = None) -> None:
        """Make room for `n_tokens` tokens in all.

        Takes `growth_blocks` at a time, so that runs stay long, where free and cached blocks allow
        it; else exactly what is needed.

        Args:
            most_tokens: the request will never have more in all, so nothing is taken beyond;
                None: not known.

        Raises:
            RequestTooLargeError, PoolExhaustedError: as `acquire`; the lease is unchanged.
            LeaseError: it was released.
        """
        self._leases.require_live(lease)
        n_needed = max(self._blocks_for(n_tokens), lease.n_needed)
        missing = n_needed - lease.n_blocks
        if missing > 0:
            self._room.require(missing, self._room.n_obtainable - lease.n_slack)
            self._leases.resize(lease, n_blocks=lease.n_blocks, n_needed=lease.n_blocks)
            portion = max(missing, self._growth_blocks)
            if most_tokens is not None:
                most_missing = self._blocks_for(most_tokens) - lease.n_blocks
                portion = max(missing, min(portion, most_missing))
            self._room.take(lease, portion if portion <= self._pools.n_obtainable else missing)
        self._leases.resize(lease, n_blocks=lease.n_blocks, n_needed=n_needed)

    def commit(self, lease: Lease, tokens: bytes) -> None:
        """Make the full blocks of a request matchable.

        Where an equal request has stored the same blocks meanwhile, the lease takes over the
        tree's and gives its own back. Nothing is stored when something that the lease was made
        under has been invalidated since.

        Args:
            tokens: every token whose KV is written, packed, from position 0.

        Raises:
            LeaseError: it was released, or `tokens` is more than it has room for.

        Cost: the blocks that are new, for the walk starts at the lease's own node; where they
        lengthen a leaf that nobody else uses, also a copy of that leaf's ids.
        """
        self._leases.require_live(lease)
        length = n_tokens(tokens)
        if length > lease.capacity_tokens:
            raise LeaseError(lease.id, f"{length} tokens, room for {lease.capacity_tokens}")
        n_needed = max(self._blocks_for(length), lease.n_needed)
        self._leases.resize(lease, n_blocks=lease.n_blocks, n_needed=n_needed)
        if lease.stores and self._forest.is_current(lease.root):
            self._committer.store(lease, tokens, length // self.block_size_tokens, self._clock)

    def release(self, lease: Lease) -> None:
        """End a claim: what is the tree's stays cached, the lease's own blocks are free.

        Releasing twice is harmless, and counted.

        Raises:
            LeaseError: the lease is another cache's.

        Cost: the nodes that nobody pins any more.
        """
        if not lease.is_live:
            self._double_releases += 1
            return
        self._leases.require_live(lease)
        self._pools.free_held(lease.own_runs())
        self._leases.close(lease)
        lease.runs, lease.n_stored = self._pools.no_runs, 0
        self._keeper.unpin(lease.node, self._tick())
        if not self._forest.is_current(lease.root):
            self._keeper.reclaim_path(lease.node)
        self._keeper.drop_if_empty(lease.root)

    def evict(self, n_blocks: int) -> int:
        """Give up at most `n_blocks` cached blocks of each layer group; return how many went.

        What was invalidated goes first, then the policy's victims, tail blocks before the blocks
        that they depend on. Cost: O(log n) per node given up.
        """
        return self._keeper.evict(n_blocks)

    def reclaim(self) -> int:
        """Free every block of invalidated trees that no lease holds; return how many went.

        Never needed, for they go first under pressure; it makes the counts show it. Cost: what
        is left of those trees.
        """
        return self._keeper.reclaim(None)

    def invalidate(self, scope: Scope) -> None:
        """Make everything stored in `scope` unmatchable, and everything running in it unstorable.

        O(1). Running requests keep their blocks until they are released.
        """
        self._forest.invalidate(scope)

    def counts(self, group: int = 0) -> PoolCounts:
        """Return the blocks of one layer group by state. O(1)."""
        return self._pools.pools[group].counts

    def longest_free_run(self, group: int = 0) -> int:
        """Return the most consecutive free blocks of one layer group. O(1)."""
        return self._pools.pools[group].longest_free_run

    def stats(self) -> CacheStats:
        """Return the counters as of now. O(1)."""
        return CacheStats(
            lookups=self._lookups,
            lookup_tokens=self._lookup_tokens,
            hit_tokens=self._hit_tokens,
            evicted_blocks=self._keeper.evicted_blocks,
            reclaimed_blocks=self._keeper.reclaimed_blocks,
            double_releases=self._double_releases,
        )

    def check(self) -> None:
        """Prove that trees, leases and pools agree. Raises BooksError with what differs.

        Cost: everything there is. For tests, and for a look at a sick server.
        """
        check_books(self._pools, self._forest, self._keeper, self._leases, self._block_bytes)

    def _find(self, root: Root, tokens: bytes, end: int) -> Match:
        exact, size = self._token_exact_reuse, self._block_bytes
        return find(root, tokens, 0, end, block_bytes=size, token_exact=exact)

    def _tokens_of(self, match: Match) -> int:
        return match.n_blocks * self.block_size_tokens + match.shared_tokens

    def _blocks_for(self, length: int) -> int:
        n_blocks = -(-length // self.block_size_tokens)
        if n_blocks > self._pools.n_blocks:
            raise RequestTooLargeError(n_blocks, self._pools.n_blocks, self.block_size_tokens)
        return n_blocks

    def _affordable(self, match: Match, n_blocks: int) -> Match:
        """Return `match`, less the copy when its source must make room; raise when nothing helps.

        Once pinned, the path and the source cannot make room for the rest of the prompt.
        """
        missing = n_blocks - match.n_blocks
        path = self._keeper.unpinned_blocks(match.node, match.edge_blocks)
        room = self._room.n_obtainable - path
        self._room.require(missing, room)
        source = match.source
        if source is None or source.pins:
            return match
        kept = self._keeper.n_blocks_of(source)
        if source is match.node:
            kept -= match.edge_blocks  # counted with the path
        return match if missing <= room - kept else match._replace(source=None, shared_tokens=0)

    def _admit(self, root: Root, match: Match, n_blocks: int, *, stores: bool) -> Lease:
        """Pin what `match` found and take blocks for the rest. There is room for it."""
        node = self._keeper.split(match.node, match.edge_blocks)
        self._keeper.pin(node)
        lease = Lease(
            self._leases.new_id(),
            root,
            node,
            path_runs(node, root),
            n_stored=match.n_blocks,
            stores=stores,
            block_tokens=self.block_size_tokens,
        )
        lease.cached_tokens = self._tokens_of(match)
        self._leases.open(lease)
        missing = n_blocks - match.n_blocks
        if match.source is None:
            self._room.take(lease, missing)
        else:
            self._take_and_copy(lease, missing, match.source, match.shared_tokens)
        return lease

    def _take_and_copy(self, lease: Lease, n_blocks: int, source: Node, n_shared: int) -> None:
        """Give `lease` blocks, and copy the first `n_shared` tokens of `source` to the first one.

        The source is pinned meanwhile, so that making room does not take it. If the copy fails the
        lease is released.
        """
        with ExitStack() as undo:
            undo.callback(self.release, lease)
            self._keeper.pin(source)
            try:
                self._room.take(lease, n_blocks)
                self._copy_first_block(source, lease, n_shared)
            finally:
                self._keeper.unpin(source, self._tick())
            undo.pop_all()

    def _copy_first_block(self, source: Node, lease: Lease, n_shared: int) -> None:
        if self._copy_block is None:
            return
        for group, own in enumerate(lease.own_runs()):
            first = source.runs[group][0].first
            self._copy_block(BlockCopy(group, first, own[0].first, n_shared))

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
