"""The tier on a disk: a folder of segments that one process writes."""

from prefixcache.tiers.disk.tier import DiskTier

__all__ = ["DiskTier"]
