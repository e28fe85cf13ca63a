"""How a request gets in: what it finds, whether the rest fits, and what it then holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NoReturn

from prefixcache.errors import ConfigError, EmptyPromptError, RequestTooLargeError
from prefixcache.index.accounts import SYSTEM_TENANT, Account
from prefixcache.index.lease import Lease, LeaseBook
from prefixcache.index.misses import Miss, MissReason
from prefixcache.index.namespaces import Namespace
from prefixcache.index.nodes import Anchor, Mount, Node, Root
from prefixcache.index.passages import cut_match, path_of
from prefixcache.index.publisher import Found, Passage, Publisher
from prefixcache.index.room import Room
from prefixcache.index.tokens import TOKEN_BYTES, Packed, n_tokens
from prefixcache.index.tree import Match, anchor_of, child_of, find
from prefixcache.index.trees import Trees
from prefixcache.types import BlockId

_MOST_NAMESPACES = 16  # of a tenant that are looked at to explain a miss
_DIVERGED = MissReason.DIVERGED  # the usual one; Python takes long to find an enum's member


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """An order to copy the KV of the first `n_tokens` positions of one block to another."""

    group: int
    source: BlockId
    target: BlockId
    n_tokens: int


class Admission:
    """Looks prompts up, makes leases of what was found, and ends them."""

    def __init__(
        self,
        trees: Trees,
        publisher: Publisher,
        leases: LeaseBook,
        room: Room,
        copy_block: Callable[[BlockCopy], None] | None,
    ) -> None:
        self._accounts = trees.accounts
        self._forest = trees.forest
        self._publisher = publisher
        self._keeper = trees.keeper
        self._leases = leases
        self._room = room
        self._retentions = trees.retentions
        self._gone = trees.gone
        self._windows = trees.windows
        self._hooks = trees.hooks
        self._block_tokens = trees.block.n_tokens
        self._block_bytes = trees.block.n_bytes
        self._token_exact = trees.block.is_token_exact
        self._copy_block = copy_block

    def find(self, root: Root, tokens: Packed, end: int) -> Found:
        """Return the longest that a prompt of the root's namespace may reuse. Changes nothing.

        That is a match in its own tree, and the published prompt that it passes through, if any.
        """
        own: Found = find(root, tokens, 0, end, self._block_bytes), None
        if self._windows.pools:
            own = self._cut(root, *own)
        if not self._publisher.prompts or root.namespace.tenant == SYSTEM_TENANT:
            return own
        cut = partial(self._cut, root)
        return self._publisher.longest(own[0], root.namespace, tokens, end, cut)

    def _cut(self, root: Root, match: Match, passage: Passage | None) -> Found:
        """Return a match as far as no window group has a hole that the next token would see."""
        if not self._windows.pools:
            return match, passage
        seen = self._windows.visible_end(path_of(match, passage), match.n_blocks)
        if seen == match.n_blocks:
            return match, passage
        return cut_match(root, match, passage, seen)

    def tokens_of(self, match: Match) -> int:
        """Return how many tokens of a match are reused: part of a block if it may be copied."""
        if self._token_exact:
            return match.n_blocks * self._block_tokens + match.shared_tokens
        return match.n_blocks * self._block_tokens

    def reason(self, root: Root, match: Match, tokens: Packed, end: int) -> MissReason | None:
        """Return why no more of a prompt was found; None when all but its last token was.

        Cost: a hash of one block; when nothing at all was found, the tenant's other namespaces.
        """
        n_left = end - match.n_blocks * self._block_tokens
        if n_left <= (match.shared_tokens if self._token_exact else 0):
            return None
        gone = MissReason.EVICTED if match.is_cut else None
        if gone is None and not self._gone.is_empty:
            gone = self._gone.reason(
                root.namespace.tenant, match.n_blocks, self._block_after(match, tokens)
            )
        if gone is not None:
            return gone
        if n_left < self._block_tokens or (match.shared_tokens and not self._token_exact):
            return MissReason.BELOW_BLOCK
        if not match.n_blocks and not match.shared_tokens:
            return self._reason_for_nothing(root, self._block_after(match, tokens))
        node = match.node
        if match.shared_tokens or node.children is not None or match.edge_blocks < node.n_blocks:
            return _DIVERGED
        return MissReason.NOTHING_STORED

    def _block_after(self, match: Match, tokens: Packed) -> bytes:
        at = match.n_blocks * self._block_bytes
        return bytes(tokens[at : at + self._block_bytes])

    def miss(self, root: Root, match: Match, tokens: Packed, end: int) -> Miss | None:
        """Return `reason` and the token that it is about."""
        reason = self.reason(root, match, tokens, end)
        token = match.n_blocks * self._block_tokens + match.shared_tokens
        return None if reason is None else Miss(reason, token)

    def acquire(
        self,
        namespace: Namespace,
        tokens: Packed,
        room_tokens: int,
        now: float,
        read: bool,
        store: bool,
        priority: int,
    ) -> Lease:
        """Pin what is stored of a prompt and take blocks for the rest. As `PrefixCache.acquire`."""
        if self._hooks.is_running:
            self._hooks.refuse()
        length = len(tokens) // TOKEN_BYTES
        if len(tokens) % TOKEN_BYTES or not length or room_tokens < 0:
            _refuse(tokens, room_tokens)
        if self._retentions.next_end <= now:
            self._retentions.expire(now)
        root = self._forest.plant(namespace, now)
        try:
            if read:
                match, passage = self.find(root, tokens, length - 1)
                reason = self.reason(root, match, tokens, length - 1)
            else:
                match, passage, reason = Match(root, 0, 0), None, MissReason.DISABLED
            lease = self._admit(root, match, passage, length + room_tokens, now, store, priority)
        except BaseException:
            self._keeper.drop_if_empty(root)
            raise
        lease.miss_reason = reason
        lease.miss_token = match.n_blocks * self._block_tokens + match.shared_tokens
        if read:
            root.tally.add(length, lease.cached_tokens, reason)
        if store:
            lease.prompt = tokens if isinstance(tokens, bytes) else bytes(tokens)
        return lease

    def blocks_for(self, length: int, account: Account) -> int:
        """Return how many blocks so many tokens take.

        Raises:
            RequestTooLargeError: no request of the account can have as many.
        """
        n_blocks = -(-length // self._block_tokens)
        most = self._accounts.most_blocks(account)
        if n_blocks > most:
            raise RequestTooLargeError(n_blocks, most, self._block_tokens)
        return n_blocks

    def let_go(self, lease: Lease, now: float) -> None:
        """End a lease: what is the tree's stays cached, its own blocks are free."""
        if self._hooks.is_running:
            self._hooks.refuse()
        if lease.n_blocks > lease.n_stored:
            lease.account.free_held(lease.own, lease.n_blocks - lease.n_stored)
        if lease.window_hold is not None:
            self._windows.leave(lease.window_hold, lease.node)
        self._leases.close(lease)
        anchor, root = lease.anchor, lease.root
        if anchor is root and root.checked_epoch == self._forest.epoch:
            self._keeper.unpin(lease.node, now)
        else:
            self._let_go_of_stale(lease, now)
        if anchor.children is None:
            self._keeper.drop_if_empty(anchor)

    def _let_go_of_stale(self, lease: Lease, now: float) -> None:
        """Unpin the path of a lease, and give up what can be matched no more."""
        anchor = lease.anchor
        source = anchor.source if isinstance(anchor, Mount) else None
        self._keeper.unpin(lease.node, now)
        if not self._forest.is_storable(anchor):
            self._keeper.reclaim_path(lease.node)
        if source is None or not isinstance(anchor, Mount):
            return
        if not self._forest.is_storable(anchor_of(source)):
            self._keeper.reclaim_path(source)
        elif not anchor.published.is_live:
            self._keeper.reclaim_path(source, spare_kept=True)

    def _admit(
        self,
        root: Root,
        match: Match,
        passage: Passage | None,
        n_room: int,
        now: float,
        stores: bool,
        priority: int,
    ) -> Lease:
        """Make a lease of a match, with room for `n_room` tokens."""
        n_missing = -(-n_room // self._block_tokens) - match.n_blocks
        is_easy = self._accounts.has_room(root.account, n_missing)
        if not is_easy:
            self.blocks_for(n_room, root.account)
            match = self._affordable(root, match, passage, n_missing)
        anchor: Anchor = root
        node = match.node
        if passage is not None or match.edge_blocks < node.n_blocks:
            anchor, node = self._enter(root, match, passage, now)
        self._keeper.pin(node)
        self._keeper.use(node, priority)
        n_stored, size = match.n_blocks, self._block_tokens
        lease = Lease(self._leases, root, anchor, node, n_stored, priority, stores, size)
        if self._windows.pools:
            lease.window_hold = self._windows.enter(node, match.n_blocks)
        if match.source is not None and self._token_exact:
            lease.cached_tokens += match.shared_tokens
            self._take_and_copy(lease, n_missing, match.source, match.shared_tokens, now)
        elif is_easy:
            self._room.give(lease, n_missing)
        else:
            try:
                self._room.take(lease, n_missing, now)
            except BaseException:
                self.let_go(lease, now)
                raise
        return lease

    def _affordable(
        self, root: Root, match: Match, passage: Passage | None, n_missing: int
    ) -> Match:
        """Return what is to be reused, less the copy when its source must make room.

        Once pinned, the path and the source cannot make room for the rest of the prompt. Raises
        PoolExhaustedError when the room is too small in any case.
        """
        own_path = system_path = 0
        through = None if passage is None else passage.through
        if passage is None or passage.mount is not None:
            own_path = self._keeper.unpinned_blocks(match.node, match.edge_blocks)
        if through is not None and (passage is None or not passage.is_pinned):
            system_path = self._keeper.unpinned_blocks(through.node, through.edge_blocks)
        account = root.account
        self._room.require(account, n_missing, own_path, system_path)
        source = match.source
        if source is None or source.pins or not self._token_exact:
            return match
        kept = source.n_blocks
        if source is match.node:
            kept -= match.edge_blocks  # counted with the path
        elif through is not None and source is through.node:
            kept -= through.edge_blocks
        if source.account is account:
            own_path += kept
        else:
            system_path += kept
        if n_missing <= self._accounts.n_obtainable(account, own_path, system_path):
            return match
        return match.copying(None, 0)

    def _enter(
        self, root: Root, match: Match, passage: Passage | None, now: float
    ) -> tuple[Anchor, Node]:
        """Return where the lease is anchored and which node it is to pin; split where need be."""
        if passage is None:
            return root, self._keeper.split(match.node, match.edge_blocks)
        through, mount = passage.through, passage.mount
        source = self._keeper.split(through.node, through.edge_blocks)
        if mount is None:
            mount = self._forest.mount(root, passage.published, through.n_blocks, now)
        if not mount.pins:
            mount.source = source
        if passage.mount is None:
            return mount, mount
        return mount, self._keeper.split(match.node, match.edge_blocks)

    def _take_and_copy(
        self, lease: Lease, n_blocks: int, source: Node, n_shared: int, now: float
    ) -> None:
        """Give `lease` blocks, and copy the first `n_shared` tokens of `source` to the first one.

        The source is pinned meanwhile, so that making room does not take it. If the copy fails the
        lease is ended.
        """
        self._keeper.pin(source)
        try:
            self._room.take(lease, n_blocks, now)
            self._copy_first_block(source, lease, n_shared)
        except BaseException:
            self._keeper.unpin(source, now)
            self.let_go(lease, now)
            raise
        self._keeper.unpin(source, now)

    def _copy_first_block(self, source: Node, lease: Lease, n_shared: int) -> None:
        if self._copy_block is None:
            return
        for group, own in enumerate(lease.own):
            first = source.runs[group][0].first
            copy = BlockCopy(group, first, own[0].first, n_shared)
            self._hooks.run(self._copy_block, copy)

    def _reason_for_nothing(self, root: Root, block: bytes) -> MissReason:
        if self._publisher.was_retired(root.namespace, block):
            return MissReason.RETIRED_VERSION
        if root.previous is not None and child_of(root.previous, block) is not None:
            return MissReason.OLD_GENERATION
        if self._forest.has_only(root):
            return MissReason.NOTHING_STORED
        others = self._forest.roots_of(root.namespace.tenant)
        if any(child_of(other, block) is not None for other in islice(others, _MOST_NAMESPACES)):
            return MissReason.OTHER_NAMESPACE
        return MissReason.NOTHING_STORED


def _refuse(tokens: Packed, room_tokens: int) -> NoReturn:
    n_tokens(tokens)  # raises on half a token
    if room_tokens < 0:
        raise ConfigError("room_tokens", room_tokens, "must be at least 0")
    raise EmptyPromptError
