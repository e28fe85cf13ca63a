"""What a request may go on with, and room for it, as far as that costs nobody anything."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from prefixcache.index.children import Bucket
from prefixcache.index.core import Core
from prefixcache.index.lease import Lease
from prefixcache.index.namespaces import Namespace
from prefixcache.index.nodes import Node
from prefixcache.index.publisher import Passage
from prefixcache.index.tokens import TOKEN_BYTES, Packed, n_tokens
from prefixcache.index.tree import Match

_MOST_BRANCHES = 32  # the latest children that are compared where a tree parts


class Ahead:
    """Guesses for decoding several tokens in one step: `PrefixCache.ahead`.

    Design: prefixcache/design/0015-speculation.md.
    """

    def __init__(self, core: Core) -> None:
        self._forest, self._admission = core.forest, core.admission
        self._leases, self._accounts = core.leases, core.accounts
        self._room, self._pools, self._hooks = core.room, core.pools, core.hooks
        self._block_tokens, self._block_bytes = core.block.n_tokens, core.block.n_bytes

    def continuation(self, namespace: Namespace, tokens: Packed, n_most: int) -> bytes:
        """Return what is stored after `tokens`, packed, at most `n_most` tokens. Changes nothing.

        It is what a request of the namespace could match: its own tree, and the published prompts
        that it may use. Where that parts, the way that was used last; of equal ones that with most
        hits, then the newest. Empty where `tokens` are not stored, or nothing follows them.

        Cost: as `PrefixCache.match_length`, and at most 32 children for each node that follows.
        """
        if n_most < 1:
            return b""
        end = n_tokens(tokens)
        root = self._forest.root_to_look_in(namespace)
        match, passage = self._admission.find(root, tokens, end)
        if match.n_blocks * self._block_tokens + match.shared_tokens < end:
            return b""
        n_bytes = n_most * TOKEN_BYTES
        if passage is not None and _ends_in_prompt(match, passage):
            at = end * TOKEN_BYTES  # the system's tree holds what other tenants may use as well
            return passage.published.tokens[at : at + n_bytes]
        node, at = match.node, match.edge_blocks * self._block_bytes
        if match.source is not None:
            rest = bytes(tokens[match.n_blocks * self._block_bytes :])
            if match.source is not node:
                node, at = _latest(_alike(node, match.source, rest)), 0
            at += len(rest)
        return _following(node, at, n_bytes)

    def reserve(self, lease: Lease, n_tokens: int) -> int:
        """Make room for up to `n_tokens` tokens in all, and return for how many there is.

        Only growth slack of its own and free blocks are taken: nothing is given up for it. Call
        `settle` when it is known how much of it was needed.

        Raises:
            LeaseError: the lease was released.
        """
        self._leases.require_live(lease)
        if self._hooks.is_running:
            self._hooks.refuse()
        account = lease.account
        n_asked = -(-n_tokens // self._block_tokens)
        n_left = min(self._pools.smallest.n_free, account.max_blocks - account.n_used)
        missing = min(n_asked - lease.n_blocks, n_left)
        if missing > 0 and self._accounts.may_grow_ahead(account, missing):
            self._leases.resize(lease, lease.n_blocks, lease.n_blocks)
            before = lease.n_needed
            self._room.give(lease, missing)
            self._leases.resize(lease, lease.n_blocks, before)
        self._leases.resize(
            lease, lease.n_blocks, max(lease.n_needed, min(n_asked, lease.n_blocks))
        )
        return min(n_tokens, lease.capacity_tokens)

    def settle(self, lease: Lease, n_tokens: int) -> None:
        """Make what lies beyond `n_tokens` tokens growth slack again, for others to take.

        Raises:
            LeaseError: the lease was released.
        """
        self._leases.require_live(lease)
        n_needed = max(-(-n_tokens // self._block_tokens), lease.n_stored)
        if n_needed < lease.n_needed:
            self._leases.resize(lease, lease.n_blocks, n_needed)


def _ends_in_prompt(match: Match, passage: Passage) -> bool:
    """Return whether a match ends in the system's tree, not in the tenant's own."""
    if passage.mount is None:
        return True
    return match.source is not None and match.source is passage.through.source


def _following(node: Node, at: int, n_bytes: int) -> bytes:
    """Return up to `n_bytes` of the path on from byte `at` of the edge of `node`."""
    found = node.edge[at : at + n_bytes]
    while len(found) < n_bytes and node.children is not None:
        node = _latest(_newest(node))
        found += node.edge[: n_bytes - len(found)]
    return found


def _newest(node: Node) -> Iterator[Node]:
    """Yield the children that were added last."""
    assert node.children is not None
    entries = reversed(node.children.by_token.values())
    each = (
        islice(reversed(entry.values()), _MOST_BRANCHES) if isinstance(entry, Bucket) else (entry,)
        for entry in entries
    )
    return islice(chain.from_iterable(each), _MOST_BRANCHES)


def _alike(node: Node, found: Node, rest: bytes) -> Iterator[Node]:
    """Yield children that begin with `rest`, less than a block; `found` is one of them."""
    yield found
    assert node.children is not None
    entry = node.children.by_token[rest[:TOKEN_BYTES]]
    if isinstance(entry, Bucket):
        latest = islice(reversed(entry.values()), _MOST_BRANCHES)
        yield from (child for child in latest if child.edge.startswith(rest))


def _latest(children: Iterator[Node]) -> Node:
    return max(children, key=lambda child: (child.last_used, child.hits, child.created))
