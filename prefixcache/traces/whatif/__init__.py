"""What if: other tenants' rules, published prompts, a second tier, several replicas."""

from prefixcache.traces.whatif.caches import CacheOptions, TraceCache
from prefixcache.traces.whatif.replicas import ROUTINGS, Replicas
from prefixcache.traces.whatif.settings import WhatIf

__all__ = ["ROUTINGS", "CacheOptions", "Replicas", "TraceCache", "WhatIf"]
