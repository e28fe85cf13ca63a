"""The formats in which a store can keep keys and values, by name."""

from __future__ import annotations

from typing import NamedTuple

import torch

from prefixcache.errors import ConfigError
from prefixcache.kv.codecs import Cast, Codec, Int8
from prefixcache.kv.differences import Differences
from prefixcache.kv.int4 import Int4
from prefixcache.kv.kept import Kept

E4M3_CAPABILITY = (8, 9)  # of a CUDA device: the first with instructions for it


class KVFormat(NamedTuple):
    """How keys are kept, and how values are."""

    name: str
    keys: Codec
    values: Codec
    turns_keys: bool = False  # see `Turning`
    keys_kept: type[Kept] = Kept
    version: int = 1  # raised when the same numbers become other bytes


_FORMATS = {
    each.name: each
    for each in (
        KVFormat("float32", Cast(torch.float32), Cast(torch.float32)),
        KVFormat("bfloat16", Cast(torch.bfloat16), Cast(torch.bfloat16)),
        KVFormat("float16", Cast(torch.float16), Cast(torch.float16)),
        KVFormat("fp8", Cast(torch.float8_e4m3fn), Cast(torch.float8_e4m3fn)),
        KVFormat("int8", Int8(), Int8()),
        KVFormat("int4", Int4(), Int4(), turns_keys=True, keys_kept=Differences, version=2),
    )
}


def kv_format(name: str, dtype: torch.dtype) -> KVFormat:
    """Return the format called `name` for a model that computes in `dtype`.

    Raises:
        ConfigError: there is none of that name.
    """
    if name == "auto":
        name = str(dtype).removeprefix("torch.")
    if name not in _FORMATS:
        raise ConfigError("kv_format", name, f"must be one of auto, {', '.join(_FORMATS)}")
    return _FORMATS[name]


def require_format(name: str, device: torch.device) -> None:
    """Raise ConfigError where a device has no instructions for a format."""
    if name != "fp8":
        return
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < E4M3_CAPABILITY:
        reason = (
            f"{device} converts it number by number, if at all; int8 takes as much room and is"
            " nearer to what it stands for"
        )
        raise ConfigError("kv_format", name, reason)
