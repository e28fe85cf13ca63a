"""Packed weights: fewer bytes to read for each token, and lean layers that read them."""

from prefixcache.engine.weights.choice import choose_kind, load_dtype
from prefixcache.engine.weights.pack import Packed, pack_model
from prefixcache.engine.weights.products import WeightKind

__all__ = ["Packed", "WeightKind", "choose_kind", "load_dtype", "pack_model"]
