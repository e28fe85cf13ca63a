"""Who may match what, and what has been invalidated since."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import msgspec


class Namespace(msgspec.Struct, frozen=True, cache_hash=True):
    """The typed name of one tree: prompts match only within the same one.

    The fields are compared one by one, never joined to text, so that a salt spelled like an
    adapter is not that adapter.
    """

    model: str = "default"
    adapter: str | None = None  # one load of an adapter, not its display name
    kv_format: str = "default"  # whatever else makes KV unusable elsewhere: dtype, layout
    tenant: str = "default"
    salt: str | None = None  # narrows the tenant's namespace


class ScopeKind(StrEnum):
    """What an invalidation names."""

    MODEL = "model"
    ADAPTER = "adapter"
    TENANT = "tenant"
    NAMESPACE = "namespace"


@dataclass(frozen=True, slots=True)
class Scope:
    """Everything of one model, adapter or tenant, or exactly one namespace."""

    kind: ScopeKind
    value: str | Namespace  # a namespace for that kind, text for the others

    @classmethod
    def model(cls, name: str) -> Scope:
        """Return the scope of every namespace of this model."""
        return cls(ScopeKind.MODEL, name)

    @classmethod
    def adapter(cls, name: str) -> Scope:
        """Return the scope of every namespace with this adapter load."""
        return cls(ScopeKind.ADAPTER, name)

    @classmethod
    def tenant(cls, name: str) -> Scope:
        """Return the scope of every namespace of this tenant."""
        return cls(ScopeKind.TENANT, name)

    @classmethod
    def namespace(cls, namespace: Namespace) -> Scope:
        """Return the scope of exactly this namespace."""
        return cls(ScopeKind.NAMESPACE, namespace)


class Generations(NamedTuple):
    """How often each thing that a namespace depends on had been invalidated."""

    model: int
    adapter: int
    tenant: int
    namespace: int


class GenerationCounters:
    """The present generation of everything. Each counts from 0 and only rises."""

    def __init__(self) -> None:
        self._models: Counter[str | Namespace | None] = Counter()
        self._adapters: Counter[str | Namespace | None] = Counter()
        self._tenants: Counter[str | Namespace | None] = Counter()
        self._namespaces: Counter[str | Namespace | None] = Counter()
        self._by_kind = {
            ScopeKind.MODEL: self._models,
            ScopeKind.ADAPTER: self._adapters,
            ScopeKind.TENANT: self._tenants,
            ScopeKind.NAMESPACE: self._namespaces,
        }

    def current(self, namespace: Namespace) -> Generations:
        """Return the generations that something made now in `namespace` is made under. O(1)."""
        return Generations(
            self._models[namespace.model],
            self._adapters[namespace.adapter],
            self._tenants[namespace.tenant],
            self._namespaces[namespace],
        )

    def bump(self, scope: Scope) -> None:
        """Make everything of `scope` that exists older than the present. O(1)."""
        self._by_kind[scope.kind][scope.value] += 1


def scopes_of(namespace: Namespace) -> tuple[Scope, ...]:
    """Return every scope that `namespace` lies in."""
    scopes = [
        Scope.model(namespace.model),
        Scope.tenant(namespace.tenant),
        Scope.namespace(namespace),
    ]
    if namespace.adapter is not None:
        scopes.append(Scope.adapter(namespace.adapter))
    return tuple(scopes)
