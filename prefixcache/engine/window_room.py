"""Room in the pools of sliding windows, which every step asks for anew."""

from __future__ import annotations

from prefixcache.engine.index_groups import IndexGroups
from prefixcache.engine.shares import Share
from prefixcache.errors import PoolExhaustedError
from prefixcache.index import Lease, PrefixCache
from prefixcache.kv import KVStore

CHUNK_TOKENS = 256  # of a prompt in one step: the whole chunk is held until the window has passed


class WindowRoom:
    """Asks the index for what the next tokens of a request write, and lets go of what they pass.

    A chunk becomes a node of the tree, which is held as a whole while some of it is seen. So a
    chunk is at most half of what a pool has beside two windows, and one request alone always has
    room for its next token.
    """

    def __init__(
        self, cache: PrefixCache, groups: IndexGroups, store: KVStore, *, most_running: int
    ) -> None:
        """`most_running`: requests; where a pool has room for a longer chunk of each, it may be."""
        self._cache = cache
        size = store.layout.block_size_tokens
        least = -(-CHUNK_TOKENS // size)
        self._seen: dict[int, int] = {}  # by group of the index: blocks that one token sees
        self._most_blocks: int | None = None
        for index, window in enumerate(groups.windows):
            if window is not None:
                seen = store.layout.groups[index - groups.n_added].blocks_seen(size)
                assert seen is not None
                n_blocks = groups.pool_blocks[index]
                wanted = max(seen, least, n_blocks // most_running - 2 * seen)
                mine = max(min(n_blocks // 2 - seen - 1, wanted), 1)
                self._seen[index] = seen
                self._most_blocks = min(mine, self._most_blocks or mine)
        self._size = size

    @property
    def is_needed(self) -> bool:
        """Whether some group lets go of what its window has passed."""
        return bool(self._seen)

    def require_one(self) -> None:
        """Raise PoolExhaustedError where no pool could have a window of its own for one more."""
        for group, seen in self._seen.items():
            counts = self._cache.counts(group)
            if counts.free + counts.cached <= seen:
                raise PoolExhaustedError(seen + 1, counts.free + counts.cached, counts.held)

    def enter(self, lease: Lease) -> None:
        """Have room for the first token that a new lease computes.

        Raises:
            PoolExhaustedError: there is none; the lease is released.
        """
        try:
            self._cache.slide(lease, lease.cached_tokens, lease.cached_tokens + 1)
        except PoolExhaustedError:
            self._cache.release(lease)
            raise

    def fitted(self, share: Share) -> Share | None:
        """Return as much of a share as there is room for, and take it; None: not for one token."""
        if self._most_blocks is None:
            return share
        lease, start = share.sequence.lease, share.sequence.n_computed
        assert lease is not None
        n_tokens = min(share.n_tokens, self._most_blocks * self._size)
        while n_tokens:
            try:
                self._cache.slide(lease, start, start + n_tokens)
            except PoolExhaustedError:
                n_tokens //= 2
            else:
                return Share(share.sequence, n_tokens)
        return None

    def reaches(self, lease: Lease, start: int, stop: int) -> bool:
        """Have room for positions start..stop-1 from what is free alone; False: there is none."""
        if self._most_blocks is None:
            return True
        n_blocks = (stop - 1) // self._size - start // self._size + 1
        if n_blocks > self._most_blocks:
            return False
        if any(self._cache.counts(group).free < n_blocks for group in self._seen):
            return False
        try:
            self._cache.slide(lease, start, stop)
        except PoolExhaustedError:
            return False
        return True
