"""What a running request holds, and which of it can be taken back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import cast

from prefixcache.errors import LeaseError
from prefixcache.index.accounts import Account
from prefixcache.index.misses import Miss, MissReason
from prefixcache.index.namespaces import Generations, Namespace
from prefixcache.index.nodes import Anchor, Mount, Node, Root
from prefixcache.index.published import Passed, Published
from prefixcache.index.spans import GroupRuns, Runs, cut_groups, join
from prefixcache.index.tokens import Packed, n_tokens
from prefixcache.index.tree import runs_to
from prefixcache.index.window_hold import WindowHold
from prefixcache.index.windows import Windows
from prefixcache.types import LeaseId


class Lease:
    """A claim on a matched path and on blocks of its own, safe from eviction until released.

    Its blocks cover positions from 0 on, the first `n_stored` of them the tree's:

        | matched or committed, shared | own: being written | own: growth slack |
        0                       n_stored             n_needed            n_blocks

    `spans` and `capacity_tokens` may change with `extend` and `commit` of this lease, and the
    slack may go at any `acquire` or `extend` of another; so read them after those calls. Blocks
    that `acquire` or `extend` was asked for stay, until `commit` exchanges them for equal ones.

    For its holder are `id`, `namespace`, `generations`, `cached_tokens`, `miss`, `priority`,
    `is_live`, `capacity_tokens`, `stored_blocks`, `written_tokens`, `passage`, `spans` and
    `first_block`. The rest is the cache's.
    """

    __slots__ = (
        "_path",
        "account",
        "anchor",
        "block_tokens",
        "book",
        "cached_tokens",
        "id",
        "miss_reason",
        "miss_token",
        "n_blocks",
        "n_needed",
        "n_stored",
        "n_written",
        "node",
        "own",
        "priority",
        "prompt",
        "published",
        "root",
        "stores",
        "window_hold",
    )

    def __init__(
        self,
        book: LeaseBook,
        root: Root,
        anchor: Anchor,
        node: Node,
        n_stored: int,
        priority: int,
        stores: bool,
        block_tokens: int,
    ) -> None:
        self.book: LeaseBook | None = book  # None: released
        self.id = next(book.ids)
        book.live[self] = None
        self.root = root
        self.account = root.account
        self.anchor = anchor  # the root, or the mount that it passes through
        self.node = node  # the deepest node it pins: its path is the first n_stored blocks
        self.n_stored = self.n_needed = self.n_blocks = n_stored
        self.n_written = 0  # blocks that the tree has from it; 0 when they can be matched no more
        self.priority = priority
        self.stores = stores
        self.block_tokens = block_tokens
        self.own: GroupRuns = root.runs  # the blocks that are not the tree's, slack included
        self.cached_tokens = n_stored * block_tokens  # whose KV was there, or copied, at `acquire`
        self.miss_reason: MissReason | None = None
        self.miss_token = 0
        self.prompt = b""  # what it is about to store; empty: nothing
        self.published: Published | None = None  # what it reads for the system
        self.window_hold: WindowHold | None = None  # of the window groups, if there are any
        self._path: GroupRuns | None = None  # the tree's blocks; None: to be collected

    @property
    def is_live(self) -> bool:
        """Whether it has not been released."""
        return self.book is not None

    @property
    def miss(self) -> Miss | None:
        """Why no more of the prompt was cached; None: all that can be was."""
        return None if self.miss_reason is None else Miss(self.miss_reason, self.miss_token)

    @property
    def namespace(self) -> Namespace:
        """Where its prompt is stored."""
        return self.root.namespace

    @property
    def generations(self) -> Generations:
        """What it was made under."""
        return self.root.generations

    @property
    def capacity_tokens(self) -> int:
        """Positions that its blocks have room for."""
        return self.n_blocks * self.block_tokens

    @property
    def stored_blocks(self) -> int:
        """Blocks from the first on that are the tree's, as of the last `commit`."""
        return self.n_stored

    @property
    def passage(self) -> Passed | None:
        """The published prompt whose blocks it begins with; None: all its blocks are its tenant's.

        What reads a prompt for the system passes through none.
        """
        anchor = self.anchor
        return Passed(anchor.published, anchor.end_block) if isinstance(anchor, Mount) else None

    @property
    def written_tokens(self) -> int:
        """Tokens of its prompt, beyond the cached ones, that others find because of it.

        In whole blocks, as of the last `commit`: none of what an equal request had stored first,
        and nothing once that commit could store no more.
        """
        n_stored_tokens = self.n_stored * self.block_tokens
        return min(self.n_written * self.block_tokens, max(n_stored_tokens - self.cached_tokens, 0))

    @property
    def n_slack(self) -> int:
        """Blocks at the end that nobody has asked for yet."""
        return self.n_blocks - self.n_needed

    def spans(self, group: int = 0) -> Runs:
        """Return the blocks of one layer group, in prompt order.

        They are those of all positions, and of a window group those from `first_block` on. Those
        before `cached_tokens` are read only: other requests read them too. The value does
        not change later; call again for news. Empty once released. Cost: the spans; the nodes of
        its path when asked for the first time since a commit.
        """
        if self.book is None:
            return ()
        is_window, index = self.book.places[group]
        if is_window:
            return self._window_runs(index)[1]
        if self._path is None:
            self._path = runs_to(self.node)
        return join(self._path[index], self.own[index])

    def first_block(self, group: int = 0) -> int:
        """Return which block of the prompt the first of `spans` is: 0, but for window groups."""
        if self.book is None:
            return 0
        is_window, index = self.book.places[group]
        return self._window_runs(index)[0] if is_window else 0

    def lead_spans(self, group: int = 0) -> Runs:
        """Return the blocks of a window group's lead, which are not among its `spans`.

        Empty for other groups, and once released. Cost: the nodes of its path, where there is one.
        """
        if self.book is None:
            return ()
        is_window, index = self.book.places[group]
        if not is_window:
            return ()
        assert self.window_hold is not None
        return self.book.windows.lead_to(self.window_hold, self.node, index)

    def _window_runs(self, index: int) -> tuple[int, Runs]:
        assert self.book is not None
        assert self.window_hold is not None
        return self.book.windows.runs_to(self.window_hold, self.node, index)

    def move(self, node: Node, n_stored: int, own: GroupRuns) -> None:
        """Note that it ends at `node` now, with `own` beyond."""
        self.node, self.n_stored, self.own = node, n_stored, own
        self._path = None


class LeaseBook:
    """The live leases, and which of them have growth slack."""

    def __init__(self, windows: Windows, places: Sequence[tuple[bool, int]]) -> None:
        self.windows = windows
        self.places = places  # by layer group: whether it is a window group, and which of those
        self.live: dict[Lease, None] = {}
        self.ids = cast("Iterator[LeaseId]", count())
        self._with_slack: dict[Lease, None] = {}

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.live)

    def close(self, lease: Lease) -> None:
        """Strike off a lease, and take its slack off the books."""
        if lease.n_blocks != lease.n_needed:
            self.resize(lease, lease.n_needed, lease.n_needed)
        lease.book = None
        lease.n_blocks = lease.n_needed = lease.n_stored = 0
        del self.live[lease]

    def require_live(self, lease: Lease) -> None:
        """Raise LeaseError if `lease` was released or is another cache's."""
        if lease.book is not self:
            raise LeaseError(lease.id, "it was released, or is another cache's")

    def require_window_room(self, lease: Lease, length: int) -> None:
        """Raise LeaseError if some window group of `lease` had no room for `length` tokens."""
        assert lease.window_hold is not None
        room = min(part.end for part in lease.window_hold.parts) * lease.block_tokens
        if length > room:
            raise LeaseError(lease.id, f"{length} tokens, window groups had room for {room}: slide")

    def use_slack(self, lease: Lease, tokens: Packed) -> None:
        """Note that `lease` has written `tokens`, some of them beyond what it asked room for.

        Raises:
            LeaseError: there is no room for them.
            TokenIdError: they end in half a token.
        """
        length = n_tokens(tokens)
        if length > lease.capacity_tokens:
            raise LeaseError(lease.id, f"{length} tokens, room for {lease.capacity_tokens}")
        self.resize(lease, lease.n_blocks, -(-length // lease.block_tokens))

    def resize(self, lease: Lease, n_blocks: int, n_needed: int) -> None:
        """Set how many blocks `lease` has and asked for, and keep the sums of slack right."""
        n_slack = n_blocks - n_needed
        change = n_slack - lease.n_slack
        lease.n_blocks, lease.n_needed = n_blocks, n_needed
        if not change:
            return
        lease.account.count_slack(change)
        if n_slack:
            self._with_slack[lease] = None
        else:
            del self._with_slack[lease]

    def with_slack(self, account: Account | None) -> list[Lease]:
        """Return the leases that have slack, of one account or of all but those in their reserve.

        The one that got its slack first comes first. Cost: the leases with slack.
        """
        if account is not None:
            return [lease for lease in self._with_slack if lease.account is account]
        return [lease for lease in self._with_slack if lease.account.excess > 0]

    def take_slack(self, lease: Lease, n_blocks: int) -> GroupRuns:
        """Take `n_blocks` blocks of slack from `lease`, and return them: the caller frees them."""
        kept = lease.n_blocks - n_blocks
        lease.own, taken = cut_groups(lease.own, kept - lease.n_stored)
        self.resize(lease, kept, lease.n_needed)
        return taken
