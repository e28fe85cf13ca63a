"""Which of the packed forms a machine is served with."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from prefixcache.config import EngineConfig, WeightsName
from prefixcache.engine.weights.processor import Processor
from prefixcache.engine.weights.products import (
    HalfProduct,
    Int8Product,
    OneDnnProduct,
    Packer,
    PlainProduct,
    Product,
    WeightKind,
)
from prefixcache.errors import ConfigError

_ALLOWED = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2, "int8": 5e-2}
_FULL_LEVELS, _SAFE_LEVELS = 127, 63


def load_dtype(config: EngineConfig, device: torch.device) -> torch.dtype | str:
    """Return the number format in which a checkpoint is to be loaded; "auto" is its own.

    Raises:
        ConfigError: `dtype` and `weights` contradict each other.
    """
    is_cpu = device.type == "cpu"
    if config.dtype != "auto":
        _refuse_contradiction(config.weights, config.dtype, is_cpu=is_cpu)
        dtype = getattr(torch, config.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype
    if is_cpu or config.weights == "float32":
        return torch.float32
    if config.weights == "int8":
        raise ConfigError("weights", "int8", f"works on a CPU alone, not on {device}")
    return "auto" if config.weights == "auto" else torch.bfloat16


def choose_kind(
    wanted: WeightsName,
    dtype: torch.dtype,
    device: torch.device,
    processor: Processor | None = None,
) -> WeightKind | None:
    """Return the packed form for weights of `dtype`, or None where they stay as they are.

    16bit is bfloat16 where the CPU gains by that, which makes long prompts fast, and
    float16 elsewhere. `processor`: None: this machine's.

    Raises:
        ConfigError: the CPU or this torch has no kernel for what is wanted, or the weights
            that are to be packed are not float32 on a CPU.
    """
    if device.type != "cpu" or dtype != torch.float32:
        is_there = wanted in ("auto", "float32") or (wanted == "16bit" and dtype.itemsize == 2)
        if not is_there:
            found = f"{dtype}".removeprefix("torch.")
            reason = f"needs float32 weights on a CPU to start from, not {found} on {device}"
            raise ConfigError("weights", wanted, reason)
        return None
    if wanted == "float32":
        return "float32"
    if wanted == "int8":
        if not is_usable("int8"):
            raise ConfigError("weights", wanted, _no_kernel("16bit or float32"))
        return "int8"
    kinds: tuple[WeightKind, ...] = ("float16",)
    if (processor or Processor.here()).gains_from_bfloat16:
        kinds = ("bfloat16", "float16")
    for kind in kinds:
        if is_usable(kind):
            return kind
    if wanted == "16bit":
        raise ConfigError("weights", wanted, _no_kernel("float32"))
    return "float32"


def packer(kind: WeightKind) -> Packer:
    """Return what packs matrices in the form `kind` on this machine."""
    if kind == "int8":
        return partial(Int8Product, levels=_levels())
    if kind == "float16":
        return HalfProduct
    if kind == "bfloat16":
        return partial(OneDnnProduct, dtype=torch.bfloat16)
    own_order = partial(OneDnnProduct, dtype=torch.float32)
    return own_order if _works(own_order, _ALLOWED["float32"]) else PlainProduct


def is_usable(kind: WeightKind) -> bool:
    """Whether the kernel of `kind` is there and multiplies right, by trying it."""

    def pack(weight: Tensor, bias: Tensor | None) -> Product:
        return packer(kind)(weight, bias)  # choosing it may fail as well

    return _works(pack, _ALLOWED[kind])


def _works(pack: Packer, allowed: float) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(n, 64, generator=generator) for n in (32, 4))
    expected = rows @ weight.T
    try:
        found = pack(weight, None)(rows)
    except (RuntimeError, AttributeError):  # no such kernel, or not on this CPU
        return False
    return bool((found - expected).norm() <= allowed * expected.norm())


def _levels() -> int:
    """Return how finely rows may be rounded: without dot products of bytes, sums of pairs
    overflow 16 bits at full range, so there the rows get 7 bits."""
    full: Tensor = torch.full((1, 64), float(_FULL_LEVELS))
    found = Int8Product(full, None, _FULL_LEVELS)(full)
    is_exact = abs(found.item() / (64 * _FULL_LEVELS**2) - 1) < 1e-3
    return _FULL_LEVELS if is_exact else _SAFE_LEVELS


def _refuse_contradiction(weights: WeightsName, dtype: str, *, is_cpu: bool) -> None:
    is_float32 = dtype == "float32"
    fits = weights == "auto" or {
        "float32": is_float32,
        "16bit": is_float32 == is_cpu,
        "int8": is_float32 and is_cpu,
    }.get(weights, False)
    if not fits:
        reason = f"does not go with dtype {dtype}{' on a CPU' if is_cpu else ''}; leave dtype out"
        raise ConfigError("weights", weights, reason)


def _no_kernel(others: str) -> str:
    return f"this CPU or this build of torch has no kernel for it; use {others}"


def head_kind(kind: WeightKind) -> WeightKind:
    """Return the packed form of the output layer beside layers packed as `kind`."""
    if kind != "int8":
        return kind
    found = choose_kind("auto", torch.float32, torch.device("cpu"))
    assert found is not None
    return found
