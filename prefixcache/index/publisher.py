"""Published prompts: which there are, and how a tenant's prompt passes through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prefixcache.index.accounts import SYSTEM_TENANT
from prefixcache.index.block_format import BlockFormat
from prefixcache.index.forest import Forest
from prefixcache.index.namespaces import Namespace
from prefixcache.index.nodes import Mount, Node, Root
from prefixcache.index.published import Published
from prefixcache.index.tokens import TOKEN_BYTES, Packed, common_prefix_tokens
from prefixcache.index.tree import Match, child_of, find

_MOST_RETIRED = 1024  # remembered to explain misses


class Passage(NamedTuple):
    """How a tenant's prompt goes through a published one."""

    published: Published
    through: Match  # in the system's tree, up to where the tenant's own begins
    mount: Mount | None = None  # where that hangs in the tenant's tree; None: it is yet to be made

    @property
    def is_pinned(self) -> bool:
        """Whether a running request of the tenant goes the same way."""
        return self.mount is not None and self.mount.pins > 0


Found = tuple[Match, Passage | None]  # the longest match, and the prompt it goes through


class Publisher:
    """The prompts that the system shares, by namespace and first block, for each tenant.

    Cost of a look-up: one comparison of memory per published prompt that the tenant may use and
    that begins with the same block.
    """

    def __init__(self, forest: Forest, block: BlockFormat) -> None:
        self._forest = forest
        self._block_bytes = block.n_bytes
        self._token_exact = block.is_token_exact
        self._by_start: dict[tuple[Namespace, str | None, bytes], list[Published]] = {}
        self.prompts: dict[Published, None] = {}  # the live ones
        self._versions: dict[tuple[Namespace, str], int] = {}
        self._retired: dict[tuple[Namespace, str | None, bytes], None] = {}

    def __iter__(self) -> Iterator[Published]:
        """Yield every live prompt, oldest first."""
        return iter(self.prompts)

    def publish(
        self,
        namespace: Namespace,
        name: str,
        tokens: bytes,
        tenants: frozenset[str] | None,
        version: int | None,
        is_pinned: bool,
    ) -> Published:
        """Enter a version of a prompt; None: the next one of its name."""
        latest = self._versions.get((namespace, name), 0)
        version = latest + 1 if version is None else version
        self._versions[namespace, name] = max(version, latest)
        published = Published(name, version, namespace, tokens, tenants, is_pinned)
        self.prompts[published] = None
        for key in self._keys(published):
            self._by_start.setdefault(key, []).append(published)
        return published

    def retire(self, published: Published) -> None:
        """Take a version off; what hangs from its mounts is up for reclaiming."""
        published.is_live = False
        self.prompts.pop(published, None)
        for key in self._keys(published):
            prompts = self._by_start[key]
            prompts.remove(published)
            if not prompts:
                del self._by_start[key]
            self._retired[key] = None
        while len(self._retired) > _MOST_RETIRED:
            del self._retired[next(iter(self._retired))]
        self._forest.unmount(published)

    def equal_to(self, published: Published) -> list[Published]:
        """Return the live prompts with the same tokens in the same tree. Cost: the prompts."""
        place = published.namespace, published.tokens
        return [other for other in self.prompts if (other.namespace, other.tokens) == place]

    def begun_by(self, namespace: Namespace, tokens: Packed) -> list[Published]:
        """Return the prompts that `tokens` begin with and that the namespace may use.

        Cost: as a look-up.
        """
        system = system_namespace(namespace)
        block = bytes(tokens[: self._block_bytes])
        keys = [(system, tenant, block) for tenant in (None, namespace.tenant)]
        return [
            published
            for key in keys
            for published in self._by_start.get(key, ())
            if tokens[: len(published.tokens)] == published.tokens
        ]

    def was_retired(self, namespace: Namespace, first_block: bytes) -> bool:
        """Return whether a prompt that begins like this was shared with `namespace` once."""
        if not self._retired:
            return False
        system = system_namespace(namespace)
        tenants = (None, namespace.tenant)
        return any((system, tenant, first_block) in self._retired for tenant in tenants)

    def end_of(self, root: Root, published: Published) -> Node | None:
        """Return the node that a cached prompt ends at, or None; half a block may be away."""
        size, tokens = self._block_bytes, published.tokens
        n_blocks = len(tokens) // size
        end = len(tokens) // TOKEN_BYTES
        match = find(root, tokens, 0, end, size, token_exact=False)
        if match.n_blocks < n_blocks or match.edge_blocks < match.node.n_blocks:
            return None
        tail = bytes(tokens[n_blocks * size :])
        if not tail:
            return match.node
        return child_of(match.node, tail)

    def paths(self, namespace: Namespace, tokens: Packed, end: int) -> Iterator[tuple[Match, int]]:
        """Yield for each published prompt that may be used how far `tokens` follow it.

        That is the match in the system's tree now, and how many tokens it will be once all is read.
        """
        for root, _, n_alike in self._alike(namespace, tokens, end):
            yield self._find(root, tokens, 0, n_alike), n_alike

    def longest(
        self,
        own: Match,
        namespace: Namespace,
        tokens: Packed,
        end: int,
        cut: Callable[[Match, Passage], Found],
    ) -> Found:
        """Return the longest of `own` and of what goes through published prompts.

        A match that goes through one is in the tenant's tree from the mount on, or, where there is
        no mount yet, in the system's. Of equal ones, what passes through: it leaves the tenant's
        own copy to be given up.

        Args:
            cut: makes a match as short as windows allow; `own` is already.
        """
        tenant_root = self._forest.root_of(namespace)
        best: Found = own, None
        most = self._tokens_of(own)
        for root, published, n_alike in self._alike(namespace, tokens, end):
            through = self._find(root, tokens, 0, n_alike)
            if not through.n_blocks:
                continue
            key = published, root
            mounts = {} if tenant_root is None else tenant_root.mounts.get(key, {})
            for match, passage in self._ways(root, through, published, mounts, tokens, end):
                found = cut(match, passage)
                n_tokens = self._tokens_of(found[0])
                if n_tokens >= most + (best[1] is not None):
                    best, most = found, n_tokens
        return best

    def _alike(
        self, namespace: Namespace, tokens: Packed, end: int
    ) -> Iterator[tuple[Root, Published, int]]:
        """Yield the prompts that the namespace may use and that begin alike, and for how long."""
        system = system_namespace(namespace)
        root = self._forest.root_of(system)
        if root is None:
            return
        block = bytes(tokens[: self._block_bytes])
        for tenant in (None, namespace.tenant):
            for published in self._by_start.get((system, tenant, block), ()):
                n_alike = common_prefix_tokens(published.tokens, 0, tokens, 0)
                yield root, published, min(n_alike, end)

    def _ways(
        self,
        root: Root,
        through: Match,
        published: Published,
        mounts: dict[int, Mount],
        tokens: Packed,
        end: int,
    ) -> Iterator[tuple[Match, Passage]]:
        """Yield each way through `published`: at its end here, and at the tenant's mounts in it."""
        if through.n_blocks not in mounts:
            yield through, Passage(published, through)
        for n_blocks, mount in mounts.items():
            if n_blocks == through.n_blocks:
                match = self._find(mount, tokens, n_blocks, end)
                if match.n_blocks == n_blocks and match.shared_tokens < through.shared_tokens:
                    match = match.copying(through.source, through.shared_tokens)
                yield match, Passage(published, through, mount)
            elif n_blocks < through.n_blocks:
                match = self._find(mount, tokens, n_blocks, end)
                if match.n_blocks > n_blocks:
                    cut = self._find(root, tokens, 0, n_blocks * self._block_bytes // TOKEN_BYTES)
                    yield match, Passage(published, cut, mount)

    def _find(self, start: Root | Mount, tokens: Packed, start_block: int, end: int) -> Match:
        return find(start, tokens, start_block, end, self._block_bytes)

    def _tokens_of(self, match: Match) -> int:
        shared = match.shared_tokens if self._token_exact else 0
        return match.n_blocks * (self._block_bytes // TOKEN_BYTES) + shared

    def _keys(self, published: Published) -> Iterator[tuple[Namespace, str | None, bytes]]:
        block = published.tokens[: self._block_bytes]
        tenants = (None,) if published.tenants is None else published.tenants
        for tenant in tenants:
            yield published.namespace, tenant, block


def system_namespace(namespace: Namespace) -> Namespace:
    """Return where the prompts are stored that `namespace` may share."""
    return Namespace(
        model=namespace.model,
        adapter=namespace.adapter,
        kv_format=namespace.kv_format,
        tenant=SYSTEM_TENANT,
    )
