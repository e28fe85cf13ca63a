"""The bytes behind block ids: layout and store."""

from prefixcache.kv.layout import KVLayout, LayerGroup
from prefixcache.kv.store import KVStore

__all__ = ["KVLayout", "KVStore", "LayerGroup"]
