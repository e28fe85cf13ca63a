"""The bytes behind block ids: layout and store."""

from prefixcache.kv.layout import KVLayout, KVPools, LayerGroup
from prefixcache.kv.store import KVStore

__all__ = ["KVLayout", "KVPools", "KVStore", "LayerGroup"]
