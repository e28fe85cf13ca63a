"""Published prompts, as the owner of the cache sees them."""

from __future__ import annotations

from collections.abc import Callable

from prefixcache.errors import ConfigError, PromptRetiredError
from prefixcache.index.core import Core
from prefixcache.index.lease import Lease
from prefixcache.index.namespaces import Namespace
from prefixcache.index.passages import path_to
from prefixcache.index.published import Published
from prefixcache.index.publisher import system_namespace
from prefixcache.index.tokens import Packed, n_tokens

_DEFAULT_NAMESPACE = Namespace()


class PublishedPrompts:
    """Prefixes that the system owns and that chosen tenants share.

    A prompt is published in O(1), and matchable once its KV is there: acquire it, compute what is
    missing, commit all of its tokens. It is retained then, and given up only after everything
    that tenants have cached beyond their reserves; `unread` tells what is to be computed again.
    """

    def __init__(self, core: Core, *, clock: Callable[[], float]) -> None:
        self._publisher, self._forest = core.publisher, core.forest
        self._admission, self._keeper = core.admission, core.keeper
        self._retentions = core.retentions
        self._observers, self._windows = core.observers, core.windows
        self._block_tokens = core.block.n_tokens
        self._clock = clock

    def publish(
        self,
        name: str,
        tokens: Packed,
        *,
        tenants: frozenset[str] | None = None,
        like: Namespace = _DEFAULT_NAMESPACE,
    ) -> Published:
        """Share a prefix with chosen tenants (None: all); a new version each time.

        Versions live side by side until they are retired.

        Args:
            tokens: packed; at least a block.
            like: whose model, adapter and KV format it is for.

        Raises:
            ConfigError: it is shorter than a block.
        """
        length = n_tokens(tokens)
        if length < self._block_tokens:
            reason = f"a published prompt has at least a block of {self._block_tokens} tokens"
            raise ConfigError("tokens", length, reason)
        return self._publisher.publish(system_namespace(like), name, bytes(tokens), tenants)

    def acquire(self, published: Published, *, priority: int = 0) -> Lease:
        """Claim what is stored of a published prompt and blocks for the rest, to compute it.

        Committing all of its tokens makes it matchable for its tenants, and retains it.

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
        if end is not None and not self._publisher.is_shared_by_another(published):
            self._retentions.drop(end, self._clock())
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
