"""Prompts' beginnings that tenants keep under a name until they expire: Gemini's explicit caches.

In memory alone: with the gateway they are gone, and so is what the engine kept for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Lock

from gateway.api.gemini_models import PromptFields
from gateway.errors import CachedContentNotFoundError, TooManyCachedContentsError
from prefixcache.index.tokens import n_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedContent:
    """One beginning. Times are seconds since the epoch."""

    id: str
    model: str
    display_name: str | None
    fields: PromptFields
    token_ids: bytes  # packed; they are the same whatever follows
    created: float
    updated: float
    expires: float

    @property
    def n_tokens(self) -> int:
        """How many tokens every prompt that builds on it shares."""
        return n_tokens(self.token_ids)


class CachedContents:
    """What each tenant keeps, oldest first. Safe to use from many threads."""

    def __init__(self, *, max_per_tenant: int, now: Callable[[], float]) -> None:
        self._max_per_tenant = max_per_tenant
        self._now = now
        self._tenants: dict[str, dict[str, CachedContent]] = {}
        self._lock = Lock()

    def check_room(self, tenant: str) -> None:
        """Raise TooManyCachedContentsError when the tenant can keep no more."""
        with self._lock:
            if len(self._alive(tenant)) >= self._max_per_tenant:
                raise TooManyCachedContentsError(self._max_per_tenant)

    def add(self, tenant: str, cached: CachedContent) -> None:
        """Keep `cached`. Raises TooManyCachedContentsError."""
        self.check_room(tenant)
        with self._lock:
            self._tenants.setdefault(tenant, {})[cached.id] = cached

    def get(self, tenant: str, cached_id: str) -> CachedContent:
        """Return what the tenant keeps as `cached_id`. Raises CachedContentNotFoundError."""
        with self._lock:
            found = self._alive(tenant).get(cached_id)
        if found is None:
            raise CachedContentNotFoundError(cached_id)
        return found

    def page(
        self, tenant: str, *, after: str | None, size: int
    ) -> tuple[list[CachedContent], bool]:
        """Return up to `size` of what the tenant keeps after the id `after`, and if more follow."""
        with self._lock:
            kept = list(self._alive(tenant).values())
        ids = [cached.id for cached in kept]
        start = ids.index(after) + 1 if after in ids else 0
        return kept[start : start + size], start + size < len(kept)

    def expire_at(self, tenant: str, cached_id: str, expires: float) -> CachedContent:
        """Change when `cached_id` expires. Raises CachedContentNotFoundError."""
        changed = replace(self.get(tenant, cached_id), updated=self._now(), expires=expires)
        with self._lock:
            self._tenants.setdefault(tenant, {})[cached_id] = changed
        return changed

    def remove(self, tenant: str, cached_id: str) -> None:
        """Keep `cached_id` no more. Raises CachedContentNotFoundError."""
        self.get(tenant, cached_id)
        with self._lock:
            self._tenants.get(tenant, {}).pop(cached_id, None)

    def _alive(self, tenant: str) -> dict[str, CachedContent]:
        """Return what has not expired, and forget the rest of this tenant's."""
        now = self._now()
        kept = {i: c for i, c in self._tenants.get(tenant, {}).items() if c.expires > now}
        if kept:
            self._tenants[tenant] = kept
        else:
            self._tenants.pop(tenant, None)
        return kept
