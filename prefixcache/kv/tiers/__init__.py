"""KV that is kept beyond the device and beyond the process: records, keys, and who keeps them."""

from prefixcache.kv.tiers.keys import StoredNamespace, StoredScope, chain_keys
from prefixcache.kv.tiers.protocol import BlockTier
from prefixcache.kv.tiers.records import BlockRecord, WantedBlock

__all__ = [
    "BlockRecord",
    "BlockTier",
    "StoredNamespace",
    "StoredScope",
    "WantedBlock",
    "chain_keys",
]
