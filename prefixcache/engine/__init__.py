"""Run a transformers model over the paged, prefix-shared KV store."""

from prefixcache.engine.engine import Engine
from prefixcache.engine.local import Generation, LocalModel

__all__ = ["Engine", "Generation", "LocalModel"]
