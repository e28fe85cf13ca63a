"""Keep the KV of every prompt prefix a language model has read, and read each once.

This package and `prefixcache.index` need no torch; the model runs in `prefixcache.engine`.
"""

from importlib import metadata

from prefixcache.config import EngineConfig
from prefixcache.errors import PrefixCacheError
from prefixcache.types import FinishReason, Grammar, GrammarKind, SamplingParams, Usage

__all__ = [
    "EngineConfig",
    "FinishReason",
    "Grammar",
    "GrammarKind",
    "PrefixCacheError",
    "SamplingParams",
    "Usage",
    "__version__",
]

__version__ = metadata.version("prefixcache")
