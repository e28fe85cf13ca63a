"""What the index should do, in the plainest terms: every stored block by all ids up to its end.

Reuse is by whole blocks. Blocks of invalidated trees that nobody holds count as available here,
like free ones, for they are the first to go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from prefixcache.index import Namespace

Ids = tuple[int, ...]
Key = tuple[int, Ids]  # the tree, and the ids from position 0 to the end of the block


@dataclass(eq=False)
class Claim:
    """A running request."""

    tree: int
    path: Ids  # ids of the blocks it shares with the tree
    n_blocks: int
    n_needed: int
    stores: bool
    slack_since: int = 0  # a count; who got slack first gives first

    @property
    def n_slack(self) -> int:
        """Blocks that it has and did not ask for."""
        return self.n_blocks - self.n_needed


class Reference:
    """Least recently used blocks go first, and no block before those that build on it.

    Where the index would raise PoolExhaustedError, the answer is None or False.
    """

    def __init__(self, pool_blocks: int, block_tokens: int, growth_blocks: int) -> None:
        self.pool_blocks, self.block_tokens = pool_blocks, block_tokens
        self.growth_blocks = growth_blocks
        self._claims: list[Claim] = []
        self._last_used: dict[Key, int] = {}  # all blocks that may be matched
        self._trees: dict[Namespace, int] = {}
        self._n_trees = self._n_releases = self._n_slacks = 0

    @property
    def held(self) -> int:
        """Blocks that some request uses: each path block once, and what is their own."""
        own = sum(c.n_blocks - len(c.path) // self.block_tokens for c in self._claims)
        return len(self._pinned()) + own

    @property
    def cached(self) -> int:
        """Matchable blocks that nobody uses."""
        return len(self._last_used.keys() - self._pinned())

    @property
    def available(self) -> int:
        """Blocks that are free or left over from invalidated trees."""
        return self.pool_blocks - self.held - self.cached

    def match(self, namespace: Namespace, ids: Ids) -> int:
        """Return the tokens of the longest stored prefix that leaves one to compute."""
        tree, size, n = self._trees.get(namespace), self.block_tokens, 0
        while (
            tree is not None and n + size < len(ids) and (tree, ids[: n + size]) in self._last_used
        ):
            n += size
        return n

    def acquire(self, namespace: Namespace, ids: Ids, *, read: bool, store: bool) -> Claim | None:
        """Enter a claim whose path is what was cached."""
        hit = self.match(namespace, ids) if read else 0
        if namespace not in self._trees:
            self._n_trees += 1
            self._trees[namespace] = self._n_trees
        n_needed, n_hit = self._blocks_for(ids), hit // self.block_tokens
        claim = Claim(self._trees[namespace], ids[:hit], n_hit, n_hit, store)
        self._claims.append(claim)
        if not self._has_room(claim, n_needed - n_hit):
            self._claims.remove(claim)
            return None
        self._take(claim, n_needed - n_hit)
        claim.n_needed = n_needed
        return claim

    def extend(self, claim: Claim, ids: Ids) -> bool:
        """Make room for `ids`."""
        n_needed = max(self._blocks_for(ids), claim.n_needed)
        missing = n_needed - claim.n_blocks
        if not self._has_room(claim, missing):
            return False
        if missing > 0:
            claim.n_needed = claim.n_blocks
            portion = max(missing, self.growth_blocks)
            self._take(claim, portion if portion <= self.available + self.cached else missing)
            self._n_slacks += 1
            claim.slack_since = self._n_slacks
        claim.n_needed = n_needed
        return True

    def commit(self, claim: Claim, ids: Ids) -> None:
        """Store the full blocks of `ids`."""
        if not claim.stores or claim.tree not in self._trees.values():
            return
        for end in range(self.block_tokens, len(ids) + 1, self.block_tokens):
            self._last_used.setdefault((claim.tree, ids[:end]), 0)
            claim.path = max(claim.path, ids[:end], key=len)

    def release(self, claim: Claim) -> None:
        """End a claim; what nobody else uses was last used now."""
        before = self._pinned()
        self._claims.remove(claim)
        self._n_releases += 1
        for key in (before - self._pinned()) & self._last_used.keys():
            self._last_used[key] = self._n_releases

    def evict(self, n_blocks: int, n_free: int) -> None:
        """Give up what is left of invalidated trees, then live blocks.

        `n_free`: free in the pool just now; what is available beyond that is left over.
        """
        left_over = self.available - n_free
        self._evict_live(n_blocks - left_over)

    def invalidate(self, namespaces: Iterable[Namespace]) -> None:
        """Forget the trees of `namespaces`; requests keep what they use."""
        for namespace in namespaces:
            tree = self._trees.pop(namespace, None)
            self._last_used = {k: t for k, t in self._last_used.items() if k[0] != tree}

    def _blocks_for(self, ids: Ids) -> int:
        return -(-len(ids) // self.block_tokens)

    def _has_room(self, claim: Claim, n_blocks: int) -> bool:
        slack = sum(other.n_slack for other in self._claims if other is not claim)
        return n_blocks <= self.available + self.cached + slack

    def _take(self, claim: Claim, n_blocks: int) -> None:
        self._evict_live(n_blocks - self.available)
        claim.n_blocks += n_blocks
        others = [other for other in self._claims if other is not claim]
        for other in sorted(others, key=lambda other: other.slack_since):
            other.n_blocks -= max(min(-self.available, other.n_slack), 0)

    def _pinned(self) -> set[Key]:
        size = self.block_tokens
        return {
            (claim.tree, claim.path[:end])
            for claim in self._claims
            for end in range(size, len(claim.path) + 1, size)
        }

    def _evict_live(self, n_blocks: int) -> None:
        for _ in range(n_blocks):
            pinned = self._pinned()
            parents = {(tree, ids[: -self.block_tokens]) for tree, ids in self._last_used}
            leaves = [k for k in self._last_used if k not in pinned and k not in parents]
            if not leaves:
                return
            del self._last_used[min(leaves, key=self._last_used.__getitem__)]
