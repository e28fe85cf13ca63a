"""What an operator asks of an engine: shared prompts, invalidation, quotas, and a look inside."""

from __future__ import annotations

from collections.abc import Mapping

from prefixcache.control import (
    Inspection,
    Invalidation,
    InvalidationKind,
    Publication,
    TenantQuota,
)
from prefixcache.engine.deferred import Cancels
from prefixcache.engine.fairness import TenantShares
from prefixcache.engine.inspecting import inspection
from prefixcache.engine.publications import Reading
from prefixcache.engine.publishing import Publishing
from prefixcache.engine.served import Served
from prefixcache.errors import AdapterError, ConfigError
from prefixcache.index import SYSTEM_TENANT, PrefixCache, Quota, Scope


class EngineControl:
    """An engine's `control`. As its other calls: from one thread, between or within steps."""

    def __init__(
        self,
        cache: PrefixCache,
        served: Served,
        shares: TenantShares,
        publishing: Publishing,
        cancels: Cancels,
        *,
        whole_group: int,
    ) -> None:
        """Make it. `whole_group`: the layer group whose pool is shown."""
        self._cache = cache
        self._served = served
        self._shares = shares
        self._publishing = publishing
        self._cancels = cancels
        self._whole_group = whole_group

    def publish(self, publication: Publication, *, stands: bool = False) -> None:
        """Share a prefix and have it read in the steps that come; `readings` tells when it is.

        It stays published when its adapter or the model is loaded again, and is read again then,
        after an invalidation, and, if it is pinned, when it has given way and nothing else is to
        be done. A request that begins with it has it read as well, and waits for that.

        Args:
            stands: it was published before, to an engine that is gone: it stays whatever becomes of
                its reading, waits for its adapter if need be, and `readings` has it at once.

        Raises:
            PublicationError: it cannot be had, the text says why; nothing has changed.
            ConfigError: it is shorter than a block.

        Cost: its length, and one comparison of memory for each other prompt.
        """
        with self._cancels.held():
            self._publishing.publish(publication, stands=stands)

    def readings(self) -> list[Reading]:
        """Hand over which publications can be matched, or were refused, since the last call."""
        return self._publishing.readings()

    def retire(self, prompt_id: str) -> None:
        """Share a publication no more: at once it matches nothing. Unknown ids are ignored."""
        with self._cancels.held():
            self._publishing.retire(prompt_id)

    def invalidate(self, invalidation: Invalidation) -> None:
        """Make what was stored unmatchable; published prompts that are hit are read again.

        Running requests go on; what they compute is matched no more. O(1), and the prompts.

        Raises:
            AdapterError: no adapter of that name is loaded.
            ConfigError: the name is missing, or is the published prompts' own.
        """
        with self._cancels.held():
            adapter = None
            match invalidation.kind:
                case InvalidationKind.EVERYTHING | InvalidationKind.MODEL:
                    self._cache.invalidate(Scope.model(self._served.info.load_id))
                case InvalidationKind.ADAPTER:
                    adapter = _name_of(invalidation)
                    self._cache.invalidate(Scope.adapter(self._load_id(adapter)))
                case InvalidationKind.TENANT:
                    self._cache.invalidate(Scope.tenant(_name_of(invalidation)))
                    return  # prompts are the system's
            self._publishing.read_again(adapter)

    def set_quotas(self, quotas: Mapping[str, TenantQuota]) -> None:
        """Have these quotas and no others, by tenant.

        Who is not named may have all and is promised nothing, with weight 1. The name "(system)"
        stands for the published prompts, which have at most a quarter of the pool otherwise.

        Raises:
            ConfigError: the reserves are more than the pool. Nothing has changed.
        """
        with self._cancels.held():
            size = self._cache.block_size_tokens
            self._cache.set_quotas({name: _in_blocks(each, size) for name, each in quotas.items()})
            self._shares.set_weights({name: quota.weight for name, quota in quotas.items()})
            self._publishing.try_again()

    def inspect(self, *, max_nodes: int = 1000, tenant: str | None = None) -> Inspection:
        """Return the index as it is now: at most `max_nodes` nodes, one tenant's part or all.

        Cost: `max_nodes`, and the numbers of trees, tenants and publications.
        """
        with self._cancels.held():
            self._cache.expire()
            return inspection(
                self._cache,
                self._whole_group,
                self._served.info,
                self._publishing.states(tenant),
                max_nodes=max_nodes,
                tenant=tenant,
            )

    def _load_id(self, adapter: str) -> str:
        for info in self._served.info.adapters:
            if info.name == adapter:
                return info.load_id
        raise AdapterError(adapter, "none of that name is loaded")


def _name_of(invalidation: Invalidation) -> str:
    name = invalidation.name
    if name is None:
        raise ConfigError("name", None, f"say which {invalidation.kind}")
    if name == SYSTEM_TENANT and invalidation.kind is InvalidationKind.TENANT:
        raise ConfigError("name", name, "is the published prompts' own; invalidate the model")
    return name


def _in_blocks(quota: TenantQuota, block_tokens: int) -> Quota:
    """Return a quota in blocks: a reserve of at least its tokens, and at most its maximum."""
    n_reserved = -(-quota.reserved_tokens // block_tokens)
    if quota.max_tokens is None:
        return Quota(n_reserved)
    return Quota(n_reserved, max(quota.max_tokens // block_tokens, n_reserved, 1))
