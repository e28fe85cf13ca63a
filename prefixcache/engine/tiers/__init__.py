"""What lies below the device: written behind, read ahead, and loaded where that is faster."""

from prefixcache.engine.tiers.opening import open_host, open_lasting, open_tiers
from prefixcache.engine.tiers.stats import tier_stats
from prefixcache.engine.tiers.tiers import Tiers

__all__ = ["Tiers", "open_host", "open_lasting", "open_tiers", "tier_stats"]
