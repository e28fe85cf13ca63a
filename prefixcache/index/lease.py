"""What a running request holds, and which of it can be taken back."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from prefixcache.errors import LeaseError
from prefixcache.index.namespaces import Generations, Namespace
from prefixcache.index.spans import GroupRuns, Runs, cut_groups
from prefixcache.index.tree import Node, Root
from prefixcache.types import LeaseId


class Lease:
    """A claim on a matched path and on blocks of its own, safe from eviction until released.

    Its blocks cover positions from 0 on, the first `n_stored` of them the tree's:

        | matched or committed, shared | own: being written | own: growth slack |
        0                       n_stored             n_needed            n_blocks

    `spans` and `capacity_tokens` may change with `extend` and `commit` of this lease, and the
    slack may go at any `acquire` or `extend` of another; so read them after those calls. Blocks
    that `acquire` or `extend` was asked for stay, until `commit` exchanges them for equal ones.

    For its holder are `id`, `namespace`, `generations`, `cached_tokens`, `is_live`,
    `capacity_tokens` and `spans`. The rest is the cache's.
    """

    __slots__ = (
        "block_tokens",
        "cached_tokens",
        "generations",
        "id",
        "is_live",
        "n_blocks",
        "n_needed",
        "n_stored",
        "namespace",
        "node",
        "root",
        "runs",
        "stores",
    )

    def __init__(
        self,
        id: LeaseId,
        root: Root,
        node: Node,
        runs: GroupRuns,
        *,
        n_stored: int,
        stores: bool,
        block_tokens: int,
    ) -> None:
        self.id = id
        self.namespace: Namespace = root.namespace
        self.generations: Generations = root.generations
        self.cached_tokens = 0  # prompt tokens whose KV was there at `acquire`
        self.is_live = True
        self.root = root
        self.node = node  # the deepest node it pins: its path is the first n_stored blocks
        self.runs = runs
        self.n_stored = self.n_needed = self.n_blocks = n_stored
        self.stores = stores
        self.block_tokens = block_tokens

    @property
    def capacity_tokens(self) -> int:
        """Positions that its blocks have room for."""
        return self.n_blocks * self.block_tokens

    @property
    def n_slack(self) -> int:
        """Blocks at the end that nobody has asked for yet."""
        return self.n_blocks - self.n_needed

    def spans(self, group: int = 0) -> Runs:
        """Return the blocks of all positions in one layer group, in prompt order.

        Those before `cached_tokens` are read only: other requests read them too. The value does
        not change later; call again for news. Empty once released.
        """
        return self.runs[group]

    def own_runs(self) -> GroupRuns:
        """Return the blocks that are not the tree's, slack included."""
        return cut_groups(self.runs, self.n_stored)[1]


class LeaseBook:
    """The live leases, and which of them have growth slack."""

    def __init__(self) -> None:
        self._live: dict[LeaseId, Lease] = {}
        self._with_slack: dict[LeaseId, Lease] = {}
        self._ids = count()
        self.n_slack = 0  # blocks, over all leases

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._live.values())

    def new_id(self) -> LeaseId:
        """Return an id that no lease had before."""
        return LeaseId(next(self._ids))

    def open(self, lease: Lease) -> None:
        """Enter a lease that has no slack yet."""
        self._live[lease.id] = lease

    def close(self, lease: Lease) -> None:
        """Strike off a lease, and take its blocks and its slack off the books."""
        self.resize(lease, n_blocks=0, n_needed=0)
        lease.is_live = False
        del self._live[lease.id]

    def require_live(self, lease: Lease) -> None:
        """Raise LeaseError if `lease` was released or is another cache's."""
        if self._live.get(lease.id) is not lease:
            raise LeaseError(lease.id, "it was released, or is another cache's")

    def resize(self, lease: Lease, *, n_blocks: int, n_needed: int) -> None:
        """Set how many blocks `lease` has and asked for, and keep the sum of slack right."""
        self.n_slack -= lease.n_slack
        lease.n_blocks, lease.n_needed = n_blocks, n_needed
        self.n_slack += lease.n_slack
        if lease.n_slack:
            self._with_slack[lease.id] = lease
        else:
            self._with_slack.pop(lease.id, None)

    def take_slack(self, n_blocks: int) -> Iterator[GroupRuns]:
        """Take at most `n_blocks` blocks of slack, and yield them: the caller frees them.

        The lease that got its slack first gives first. Cost: the leases that give.
        """
        left = n_blocks
        while left and self._with_slack:
            lease = next(iter(self._with_slack.values()))
            n_taken = min(left, lease.n_slack)
            left -= n_taken
            kept = lease.n_blocks - n_taken
            lease.runs, taken = cut_groups(lease.runs, kept)
            self.resize(lease, n_blocks=kept, n_needed=lease.n_needed)
            yield taken
