"""adapter_model.safetensors: names and shapes are held to the model before a number is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from prefixcache.engine.adapters.places import Place
from prefixcache.engine.adapters.settings import LoraSettings, read_settings

WEIGHTS_FILE = "adapter_model.safetensors"
_PICKLED_FILE = "adapter_model.bin"
_NUMBERS = {"F32", "F16", "BF16"}
_TENSOR = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<side>[AB])\.weight")


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one linear layer: up @ (down @ x)."""

    down: Tensor  # [rank, in_features], float32
    up: Tensor  # [out_features, rank], float32, the scale in it


def read_adapter(folder: Path, places: Mapping[str, Place]) -> dict[str, LowRank]:
    """Return what the adapter in a folder adds, by the paths of the layers that it is for.

    Args:
        folder: in peft's format.
        places: the model's linear layers.

    Raises:
        ValueError: the files cannot be read, hold something else than a plain LoRA, or do not fit
            the model; the text says which tensor, what was expected and what was found.

    Cost: memory for the adapter in float32; its ranks are bounded (`settings.MAX_RANK`).
    """
    settings = read_settings(folder)
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        is_pickled = (folder / _PICKLED_FILE).exists()
        hint = f"; {_PICKLED_FILE} is not read, for it can run code: convert it" * is_pickled
        raise ValueError(f"there is no {WEIGHTS_FILE} in {folder}{hint}")
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            pairs = _pairs(file, places, settings)
            return {layer: _read(file, layer, settings) for layer in pairs}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{WEIGHTS_FILE} cannot be read: {error}") from error


def _pairs(file: Any, places: Mapping[str, Place], settings: LoraSettings) -> dict[str, set[str]]:
    """Return which of its two matrices each layer has: both, or it is refused."""
    found: dict[str, set[str]] = {}
    for name in file.keys():  # noqa: SIM118 - no mapping
        layer, side = _parsed(name)
        place = places.get(layer)
        if place is None:
            raise ValueError(f"tensor {name}: the model has no linear layer {layer} to add it to")
        if not settings.is_target(layer):
            raise ValueError(f"tensor {name}: the adapter's target_modules do not name its layer")
        _check_tensor(file, name, side, place, settings.rank(layer))
        found.setdefault(layer, set()).add(side)
    for layer, sides in found.items():
        if missing := {"A", "B"} - sides:
            raise ValueError(f"tensor {_tensor_name(layer, missing.pop())} is missing")
    if not found:
        raise ValueError(f"{WEIGHTS_FILE} holds no tensors")
    return found


def _parsed(name: str) -> tuple[str, str]:
    match = _TENSOR.fullmatch(name)
    if match is None:
        reasons = _reasons(name)
        raise ValueError(f"tensor {name}: {next(reasons)}")
    return match["path"], match["side"]


def _reasons(name: str) -> Iterator[str]:
    """Yield why a tensor is no part of a plain LoRA, the most telling first."""
    if "lora_magnitude_vector" in name:
        yield "adapters with magnitudes (DoRA) cannot be served"
    if "lora_embedding" in name:
        yield "adapters of embeddings cannot be served"
    if name.endswith(".bias"):
        yield "adapters with biases cannot be served"
    yield "it is no part of a plain LoRA, so the adapter cannot be served"


def _check_tensor(file: Any, name: str, side: str, place: Place, rank: int) -> None:
    """Hold a tensor's header to the model and the settings; nothing of it is read."""
    header = file.get_slice(name)
    found, numbers = tuple(header.get_shape()), header.get_dtype()
    expected = (rank, place.in_features) if side == "A" else (place.out_features, rank)
    if found != expected:
        raise ValueError(
            f"tensor {name} is {list(found)}; the model and a rank of {rank} ask for"
            f" {list(expected)}"
        )
    if numbers not in _NUMBERS:
        raise ValueError(f"tensor {name} holds {numbers}; only {', '.join(_NUMBERS)} can be read")


def _read(file: Any, layer: str, settings: LoraSettings) -> LowRank:
    down, up = (_finite(file, _tensor_name(layer, side)) for side in ("A", "B"))
    return LowRank(down, up * settings.scale(layer))


def _finite(file: Any, name: str) -> Tensor:
    tensor: Tensor = file.get_tensor(name).to(torch.float32)
    if not bool(tensor.isfinite().all()):
        raise ValueError(f"tensor {name} holds numbers that are not finite")
    return tensor


def _tensor_name(layer: str, side: str) -> str:
    return f"base_model.model.{layer}.lora_{side}.weight"
