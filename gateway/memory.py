"""What is remembered for tenants: each one's own, for a time, and no more than fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

_V = TypeVar("_V")
_ENTRY_BYTES = 256  # what an entry takes beside its value, about


@dataclass(frozen=True, slots=True)
class _Entry(Generic[_V]):
    value: _V
    n_bytes: int
    expires: float


class TenantMemory(Generic[_V]):
    """Values by tenant and key. Safe to use from many threads at once.

    A tenant sees its own alone. When its values have more than `max_tenant_bytes`, its oldest
    go; when all have more than `max_bytes`, the oldest go of whoever has most.
    """

    def __init__(
        self,
        *,
        max_tenant_bytes: int,
        max_bytes: int,
        ttl_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        """Make it, empty. A limit of 0 keeps nothing."""
        self._max_tenant_bytes = max_tenant_bytes
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._lock = Lock()
        self._tenants: dict[str, dict[str, _Entry[_V]]] = {}  # the oldest first, both of them
        self._bytes: dict[str, int] = {}

    @property
    def n_bytes(self) -> int:
        """What all values together count."""
        with self._lock:
            return sum(self._bytes.values())

    def put(self, tenant: str, key: str, value: _V, *, n_bytes: int) -> None:
        """Remember `value`, which counts as `n_bytes`; what it displaces is forgotten.

        A value that is too large for its tenant is not kept, nor is what it would replace.
        """
        n_bytes += _ENTRY_BYTES + len(key)
        with self._lock:
            self._expire()
            self._drop(tenant, key)
            if n_bytes > min(self._max_tenant_bytes, self._max_bytes):
                return
            expires = self._clock() + self._ttl_seconds
            self._tenants.setdefault(tenant, {})[key] = _Entry(value, n_bytes, expires)
            self._bytes[tenant] = self._bytes.get(tenant, 0) + n_bytes
            while self._bytes[tenant] > self._max_tenant_bytes:
                self._drop_oldest(tenant)
            while sum(self._bytes.values()) > self._max_bytes:
                self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))

    def get(self, tenant: str, key: str) -> _V | None:
        """Return what `tenant` has under `key`, if that is still kept."""
        with self._lock:
            entry = self._tenants.get(tenant, {}).get(key)
            return None if entry is None or entry.expires <= self._clock() else entry.value

    def pop(self, tenant: str, key: str) -> _V | None:
        """Forget what `tenant` has under `key`, and return it."""
        with self._lock:
            entry = self._drop(tenant, key)
            return None if entry is None or entry.expires <= self._clock() else entry.value

    def _expire(self) -> None:
        now = self._clock()
        for tenant in list(self._tenants):
            while (kept := self._tenants.get(tenant)) and _oldest(kept).expires <= now:
                self._drop_oldest(tenant)

    def _drop_oldest(self, tenant: str) -> None:
        self._drop(tenant, next(iter(self._tenants[tenant])))

    def _drop(self, tenant: str, key: str) -> _Entry[_V] | None:
        kept = self._tenants.get(tenant, {})
        entry = kept.pop(key, None)
        if entry is not None:
            self._bytes[tenant] -= entry.n_bytes
        if not kept:
            self._tenants.pop(tenant, None)
            self._bytes.pop(tenant, None)
        return entry


def _oldest(kept: dict[str, _Entry[_V]]) -> _Entry[_V]:
    return next(iter(kept.values()))
