"""The tier on a Redis or Valkey server, which several gateways share."""

from prefixcache.tiers.remote.tier import RemoteTier

__all__ = ["RemoteTier"]
