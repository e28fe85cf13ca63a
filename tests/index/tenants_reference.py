"""What tenants should find, in the plainest terms: sets of token paths, compared id by id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import takewhile

from prefixcache.index import SYSTEM_TENANT, Namespace, Published, Scope, ScopeKind, unpack

Ids = tuple[int, ...]
MountKey = tuple[Namespace, Published, int]  # whose, through which prompt, after which block


def n_shared(a: Ids, b: Ids) -> int:
    """Return how many leading ids are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def system_of(namespace: Namespace) -> Namespace:
    """Return where the prompts are that may be shared by `namespace`."""
    return Namespace(model=namespace.model, adapter=namespace.adapter, tenant=SYSTEM_TENANT)


def is_in(namespace: Namespace, scope: Scope) -> bool:
    """Return whether an invalidation of `scope` reaches `namespace`."""
    return (
        scope.value
        == {
            ScopeKind.MODEL: namespace.model,
            ScopeKind.ADAPTER: namespace.adapter,
            ScopeKind.TENANT: namespace.tenant,
            ScopeKind.NAMESPACE: namespace,
        }[scope.kind]
    )


def is_for(published: Published, tenant: str) -> bool:
    """Return whether `tenant` was given the prompt."""
    return published.tenants is None or tenant in published.tenants


class TenantsReference:
    """Everything that was stored and not invalidated since; what was evicted stays in here.

    So a hit is never longer than `most`. It is never shorter than `least` while nothing has
    been evicted: all of the same, but of the system's tree only what is certainly there. That is
    everything until a prompt is retired, and then what retained prompts need.
    """

    def __init__(self, block_tokens: int, *, token_exact: bool) -> None:
        self.block_tokens, self.token_exact = block_tokens, token_exact
        self.own: defaultdict[Namespace, set[Ids]] = defaultdict(set)
        self.mounted: defaultdict[MountKey, set[Ids]] = defaultdict(set)
        self.system: defaultdict[Namespace, set[Ids]] = defaultdict(set)
        self.certain: defaultdict[Namespace, set[Ids]] = defaultdict(set)
        self.prompts: dict[Published, Ids] = {}  # the live ones
        self.finished: set[Published] = set()  # wholly read, so retained

    def most(self, namespace: Namespace, ids: Ids) -> int:
        """Return what may be found at most."""
        return self._found(namespace, ids, self.system)

    def least(self, namespace: Namespace, ids: Ids) -> int:
        """Return what has to be found while nothing has been evicted."""
        return self._found(namespace, ids, self.certain)

    def most_of_system(self, namespace: Namespace, ids: Ids) -> int:
        """Return what the system may find of a prompt that it reads."""
        return self._in_blocks(self._longest(self.system[namespace], ids, len(ids) - 1))

    def publish(self, published: Published) -> None:
        """Share a prompt that nobody has read."""
        self.prompts[published] = tuple(unpack(published.tokens))

    def retire(self, published: Published) -> None:
        """Share it no more."""
        self.prompts.pop(published, None)
        self.finished.discard(published)
        for key in [key for key in self.mounted if key[1] is published]:
            del self.mounted[key]
        self.forget_what_nothing_retains()

    def forget_what_nothing_retains(self) -> None:
        """Count on prompts that were wholly read, alone."""
        self.certain.clear()
        for published in self.finished:
            self.certain[published.namespace].add(self.prompts[published])

    def store(self, namespace: Namespace, path: Ids, mount: tuple[Published, int] | None) -> None:
        """Store whole blocks of a tenant, in its own tree or behind a mount."""
        if mount is None:
            self.own[namespace].add(path)
        else:
            self.mounted[namespace, *mount].add(path)

    def store_published(self, published: Published, ids: Ids) -> None:
        """Store the first of a prompt's ids, in the system's tree."""
        is_whole = self.prompts.get(published) == ids
        path = ids if is_whole else ids[: len(ids) // self.block_tokens * self.block_tokens]
        self.system[published.namespace].add(path)
        self.certain[published.namespace].add(path)
        if is_whole:
            self.finished.add(published)

    def invalidate(self, scope: Scope) -> None:
        """Forget what was stored in `scope`."""
        for trees in (self.own, self.system, self.certain):
            for namespace in [name for name in trees if is_in(name, scope)]:
                del trees[namespace]
        for key in list(self.mounted):
            if is_in(key[0], scope) or is_in(system_of(key[0]), scope):
                del self.mounted[key]
        self.finished -= {p for p in self.finished if is_in(p.namespace, scope)}

    def _found(self, namespace: Namespace, ids: Ids, system: dict[Namespace, set[Ids]]) -> int:
        end = len(ids) - 1
        best = self._longest(self.own[namespace], ids, end)
        for published, tokens in self.prompts.items():
            if published.namespace != system_of(namespace):
                continue
            if is_for(published, namespace.tenant):
                paths = system.get(published.namespace, set())
                through = self._longest(paths, ids, min(n_shared(tokens, ids), end))
                best = max(best, self._behind(namespace, published, through, ids, end))
        return self._in_blocks(best)

    def _behind(
        self, namespace: Namespace, published: Published, through: int, ids: Ids, end: int
    ) -> int:
        """Return how much is found by way of a prompt that is there up to `through` tokens."""
        n_blocks = through // self.block_tokens
        if not n_blocks:
            return 0
        behind = [
            self._longest(paths, ids, end)
            for (name, prompt, at), paths in self.mounted.items()
            if name == namespace and prompt is published and at <= n_blocks
        ]
        return max([through, *behind])

    def _longest(self, paths: Iterable[Ids], ids: Ids, end: int) -> int:
        return min(max((n_shared(path, ids) for path in paths), default=0), end)

    def _in_blocks(self, n_tokens: int) -> int:
        return n_tokens if self.token_exact else n_tokens // self.block_tokens * self.block_tokens
