"""Which cached prefix is given up next."""

from prefixcache.index.policies.lru import LruPolicy
from prefixcache.index.policies.protocol import EvictionPolicy

__all__ = ["EvictionPolicy", "LruPolicy"]
