"""Who has which prefix: a radix tree over token ids, block pools and leases. No torch."""

from prefixcache.index.cache import BlockCopy, CacheStats, PrefixCache
from prefixcache.index.lease import Lease
from prefixcache.index.namespaces import Generations, Namespace, Scope, ScopeKind
from prefixcache.index.policies import EvictionPolicy, LruPolicy
from prefixcache.index.tokens import TOKEN_BYTES, common_prefix_tokens, pack, unpack

__all__ = [
    "TOKEN_BYTES",
    "BlockCopy",
    "CacheStats",
    "EvictionPolicy",
    "Generations",
    "Lease",
    "LruPolicy",
    "Namespace",
    "PrefixCache",
    "Scope",
    "ScopeKind",
    "common_prefix_tokens",
    "pack",
    "unpack",
]
