"""LoRA adapters: read from peft's files, and added to the rows of the requests that ask for one."""

from prefixcache.engine.adapters.applying import Adapting
from prefixcache.engine.adapters.patches import LoadedAdapter
from prefixcache.engine.adapters.registry import Adapters

__all__ = ["Adapters", "Adapting", "LoadedAdapter"]
