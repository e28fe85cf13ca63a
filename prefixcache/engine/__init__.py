"""Run a transformers model over the paged, prefix-shared KV store."""

from prefixcache.engine.engine import Engine
from prefixcache.engine.local import CacheUse, Generation, LocalModel

__all__ = ["CacheUse", "Engine", "Generation", "LocalModel"]
