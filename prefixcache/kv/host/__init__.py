"""KV that has left the device and lies in host memory."""

from prefixcache.kv.host.arena import HostArena, HostCopy
from prefixcache.kv.host.tier import HostTier

__all__ = ["HostArena", "HostCopy", "HostTier"]
