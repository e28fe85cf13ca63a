"""Who has which prefix: a radix tree over token ids, block pools and leases. No torch."""

from prefixcache.index.accounts import SYSTEM_TENANT, Quota
from prefixcache.index.admission import BlockCopy
from prefixcache.index.cache import PrefixCache
from prefixcache.index.compaction import BlockExchange, Compaction
from prefixcache.index.copies import Outlook
from prefixcache.index.events import BlockEvent, Observer
from prefixcache.index.inflight import Waiter
from prefixcache.index.lease import Lease
from prefixcache.index.locations import AwayBlocks, LowerTier
from prefixcache.index.misses import Miss, MissReason
from prefixcache.index.namespaces import Generations, Namespace, Scope, ScopeKind
from prefixcache.index.policies import EvictionPolicy, LruPolicy
from prefixcache.index.published import Passed, Published
from prefixcache.index.snapshot import NodeView, Snapshot, TreeView
from prefixcache.index.stats import CacheStats, LookupStats, NamespaceStats, TenantStats
from prefixcache.index.survey import Reading
from prefixcache.index.tokens import (
    TOKEN_BYTES,
    Packed,
    common_prefix_tokens,
    pack,
    packed_view,
    unpack,
)

__all__ = [
    "SYSTEM_TENANT",
    "TOKEN_BYTES",
    "AwayBlocks",
    "BlockCopy",
    "BlockEvent",
    "BlockExchange",
    "CacheStats",
    "Compaction",
    "EvictionPolicy",
    "Generations",
    "Lease",
    "LookupStats",
    "LowerTier",
    "LruPolicy",
    "Miss",
    "MissReason",
    "Namespace",
    "NamespaceStats",
    "NodeView",
    "Observer",
    "Outlook",
    "Packed",
    "Passed",
    "PrefixCache",
    "Published",
    "Quota",
    "Reading",
    "Scope",
    "ScopeKind",
    "Snapshot",
    "TenantStats",
    "TreeView",
    "Waiter",
    "common_prefix_tokens",
    "pack",
    "packed_view",
    "unpack",
]
