"""KV that is kept beyond the device and beyond the process: records, keys, and who keeps them."""

from prefixcache.tiers.keys import StoredNamespace, StoredScope, chain_keys
from prefixcache.tiers.protocol import BlockTier, HasRoom, Room
from prefixcache.tiers.records import BlockRecord, WantedBlock

__all__ = [
    "BlockRecord",
    "BlockTier",
    "HasRoom",
    "Room",
    "StoredNamespace",
    "StoredScope",
    "WantedBlock",
    "chain_keys",
]
