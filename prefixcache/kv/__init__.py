"""The bytes behind block ids: layout, formats and store."""

from prefixcache.kv.formats import KVFormat, kv_format, require_format
from prefixcache.kv.kept import Kept
from prefixcache.kv.layout import KVLayout, KVPools, LayerGroup
from prefixcache.kv.slots import Slots
from prefixcache.kv.store import KVStore

__all__ = [
    "KVFormat",
    "KVLayout",
    "KVPools",
    "KVStore",
    "Kept",
    "LayerGroup",
    "Slots",
    "kv_format",
    "require_format",
]
