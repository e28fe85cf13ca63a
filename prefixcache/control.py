"""What an operator's side asks of an engine beside generating: values for both ends of the wire."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from prefixcache.errors import ConfigError
from prefixcache.types import PoolCounts


class TenantQuota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tenant has of the KV pool and of the engine's steps."""

    reserved_tokens: int = 0  # KV room that is never given up, nor kept back, for others
    max_tokens: int | None = None  # KV room, cached and in use together; None: the pool
    weight: float = 1.0  # of the engine's steps when tenants compete: twice as much has 2

    def __post_init__(self) -> None:
        if self.reserved_tokens < 0:
            raise ConfigError("reserved_tokens", self.reserved_tokens, "must be at least 0")
        if self.max_tokens is not None and self.max_tokens < max(self.reserved_tokens, 1):
            raise ConfigError("max_tokens", self.max_tokens, "must be at least the reserve, and 1")
        if not 0 < self.weight < float("inf"):
            raise ConfigError("weight", self.weight, "must be above 0")


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix that chosen tenants, or all, may share."""

    prompt_id: str  # chosen by the gateway; never used twice
    name: str
    version: int
    token_ids: bytes  # packed; at least a block of them
    tenants: tuple[str, ...] | None = None  # None: all
    adapter: str | None = None  # the name of a loaded one
    pin: bool = True  # False: given up like anything else when room is short


class PublicationState(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a publication is there."""

    prompt_id: str
    n_tokens: int
    cached_tokens: int  # n_tokens in whole blocks once it was read


class InvalidationKind(StrEnum):
    """What an invalidation names."""

    EVERYTHING = "everything"
    MODEL = "model"  # the model as it is, and with every adapter
    ADAPTER = "adapter"  # by the name that requests use
    TENANT = "tenant"


class Invalidation(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing that was stored before is matched any more; running requests go on."""

    kind: InvalidationKind
    name: str | None = None  # of the adapter or tenant


class NodeShown(msgspec.Struct, frozen=True, kw_only=True):
    """One edge of a tree: so many tokens after its parent's. Never the tokens themselves."""

    id: int  # its place in the tree's list
    parent: int | None
    start_token: int
    n_tokens: int
    pins: int  # running requests that use it
    is_retained: bool
    hits: int
    idle_seconds: float | None  # None: in use


class TreeShown(msgspec.Struct, frozen=True, kw_only=True):
    """One namespace's tree, parents before children."""

    tenant: str
    adapter: str | None
    has_salt: bool  # the salt itself stays inside
    is_current: bool  # False: invalidated, and waiting to be taken down
    published: str | None  # the prompt that it hangs from: "name version"
    nodes: list[NodeShown]


class TenantShown(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's KV now, in tokens, and its counters since the engine started."""

    tenant: str
    cached_tokens: int
    held_tokens: int
    retained_tokens: int
    reserved_tokens: int
    max_tokens: int
    requests_total: int
    prompt_tokens_total: int
    hit_tokens_total: int
    evicted_tokens_total: int
    misses: dict[str, int]


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The index as an operator sees it."""

    trees: list[TreeShown]
    is_complete: bool  # False: the asked number of nodes was reached
    tenants: list[TenantShown]
    publications: list[PublicationState]
    pool: PoolCounts  # blocks
    longest_free_run: int  # blocks
    block_size_tokens: int
    kv_bytes_per_token: int
