"""Bytes of a model's weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import MappingProxyType

from transformers import PretrainedConfig

from prefixcache.engine.parameters import count_parameters
from prefixcache.plan.shape import ModelShape

WEIGHT_BITS: Mapping[str, float] = MappingProxyType(
    {"float32": 32, "16bit": 16, "fp8": 8, "int8": 8.25, "int4": 4.5}  # with scales, as is usual
)


@dataclass(frozen=True, slots=True)
class Weights:
    """How many weights there are, and their bytes."""

    total: int
    active: int  # that a token is multiplied with
    n_bytes: int
    source: str  # where the bytes come from, for people


def weights_of(
    model: str, config: PretrainedConfig, shape: ModelShape, kept: str | None = None
) -> Weights:
    """Return the weights of a model that `read_config` has read.

    Args:
        kept: a name of WEIGHT_BITS; None: as they are in the folder, or in the checkpoint's dtype.

    Raises:
        ModelError: transformers cannot build the model.
    """
    found = count_parameters(config)
    if kept is not None:
        n_bytes = ceil(found.total * WEIGHT_BITS[kept] / 8)
        return Weights(found.total, found.active, n_bytes, kept)
    on_disk = sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))
    if on_disk:
        return Weights(found.total, found.active, on_disk, "the folder's safetensors files")
    n_bytes = found.total * shape.number_bytes
    return Weights(found.total, found.active, n_bytes, f"{8 * shape.number_bytes} bits each")
