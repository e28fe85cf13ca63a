"""Published prompts, as the owner of the cache sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prefixcache.errors import ConfigError, PromptRetiredError
from prefixcache.index.accounts import SYSTEM_TENANT
from prefixcache.index.core import Core
from prefixcache.index.inflight import Waiter
from prefixcache.index.lease import Lease
from prefixcache.index.namespaces import Namespace
from prefixcache.index.passages import path_to
from prefixcache.index.published import Published, blocks_beyond, new_blocks
from prefixcache.index.publisher import system_namespace
from prefixcache.index.tokens import Packed, n_tokens
from prefixcache.index.tree import find

_DEFAULT_NAMESPACE = Namespace()


class PublishedPrompts:
    """Prefixes that the system owns and that chosen tenants share.

    A prompt is published in O(1), and matchable once its KV is there: acquire it, compute what is
    missing, commit all of its tokens. If it is pinned it is retained then, and given up only after
    everything that tenants have cached beyond their reserves. `unread` tells what is to be computed
    again.
    """

    def __init__(self, core: Core, *, clock: Callable[[], float]) -> None:
        self._publisher, self._forest = core.publisher, core.forest
        self._admission, self._keeper = core.admission, core.keeper
        self._retentions, self._accounts = core.retentions, core.accounts
        self._in_flight = core.in_flight
        self._observers, self._windows = core.observers, core.windows
        self._block_tokens, self._block_bytes = core.block.n_tokens, core.block.n_bytes
        self._clock = clock

    def publish(
        self,
        name: str,
        tokens: Packed,
        *,
        tenants: frozenset[str] | None = None,
        like: Namespace = _DEFAULT_NAMESPACE,
        version: int | None = None,
        pin: bool = True,
    ) -> Published:
        """Share a prefix with chosen tenants (None: all).

        Versions live side by side until they are retired.

        Args:
            tokens: packed; at least a block.
            like: whose model, adapter and KV format it is for.
            version: what it is called; None: one more than the last of its name.
            pin: False: once read it is the system's like any other cached prefix.

        Raises:
            ConfigError: it is shorter than a block.
        """
        length = n_tokens(tokens)
        if length < self._block_tokens:
            reason = f"a published prompt has at least a block of {self._block_tokens} tokens"
            raise ConfigError("tokens", length, reason)
        namespace = system_namespace(like)
        return self._publisher.publish(namespace, name, bytes(tokens), tenants, version, pin)

    def acquire(
        self, published: Published, *, priority: int = 0, waiter: Waiter | None = None
    ) -> Lease:
        """Claim what is stored of a published prompt and blocks for the rest, to compute it.

        Committing all of its tokens makes it matchable for its tenants. `waiter`: as in
        `PrefixCache.acquire`.

        Raises:
            PromptRetiredError: it was retired.
            RequestTooLargeError, PoolExhaustedError: as for any request; the quota is the system's.
        """
        if not published.is_live:
            raise PromptRetiredError(published.name, published.version)
        lease = self._admission.acquire(
            published.namespace,
            published.tokens,
            room_tokens=0,
            now=self._clock(),
            read=True,
            store=True,
            priority=priority,
        )
        lease.published = published
        if waiter is not None:
            self._in_flight.leave(waiter, lease)
        return lease

    def retire(self, published: Published) -> None:
        """Share a version no more: at once it matches nothing, and what hung from it is reclaimed.

        Running requests keep their blocks. Retiring twice is harmless. Cost: the nodes of its
        path; what tenants hung from it costs when it is reclaimed.
        """
        if not published.is_live:
            return
        self._publisher.retire(published)
        root = self._forest.root_of(published.namespace)
        end = None if root is None else self._publisher.end_of(root, published)
        equals = self._publisher.equal_to(published)
        if end is not None and not any(other.is_pinned for other in equals):
            self._retentions.drop(end, self._clock())
        if end is not None and not equals:
            self._keeper.reclaim_path(end, spare_kept=True)
        if self._observers.all:
            self._observers.cleared(published)

    def unread(self) -> list[Published]:
        """Return the live prompts that are not wholly cached, oldest first. A look-up each."""
        return [published for published in self._publisher if not self.is_read(published)]

    def is_read(self, published: Published) -> bool:
        """Return whether all of a prompt is cached, with what its next token sees. A look-up."""
        root = self._forest.root_of(published.namespace)
        end = None if root is None else self._publisher.end_of(root, published)
        if end is None or not end.runs[0]:
            return False
        n_blocks = n_tokens(published.tokens) // self._block_tokens
        return self._windows.visible_end(path_to(end, n_blocks), n_blocks) == n_blocks

    def cached_tokens(self, published: Published) -> int:
        """Return how much of a prompt is cached, in whole blocks. A look-up."""
        root = self._forest.root_of(published.namespace)
        if root is None:
            return 0
        length, size = published.n_tokens, self._block_tokens
        match = find(root, published.tokens, 0, length, self._block_bytes, token_exact=False)
        n_blocks = self._windows.visible_end(path_to(match.node, match.n_blocks), match.n_blocks)
        return n_blocks * size

    def begun_by(self, namespace: Namespace, tokens: Packed) -> list[Published]:
        """Return the prompts that `tokens` begin with and that the namespace may use. A look-up."""
        return self._publisher.begun_by(namespace, tokens)

    @property
    def most_blocks(self) -> int:
        """Blocks that all prompts together may have, if no request ran. O(1)."""
        return self._accounts.most_blocks(self._accounts.of(SYSTEM_TENANT))

    def pinned(self) -> Iterator[tuple[Published, int]]:
        """Yield the pinned prompts, oldest first, and the blocks each adds to those before it.

        Cost: one comparison of memory for each two that begin with the same block.
        """
        pinned = (published for published in self._publisher if published.is_pinned)
        return new_blocks(pinned, self._block_tokens)

    def blocks_beyond_others(self, published: Published) -> int:
        """Return how many blocks a prompt takes that no other pinned one does.

        Cost: one comparison of memory for each other prompt.
        """
        others = (
            other
            for other in self._publisher
            if other.is_pinned and other is not published and other.namespace == published.namespace
        )
        return blocks_beyond(published, others, self._block_tokens)
