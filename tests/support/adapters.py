"""LoRA adapters in peft's format with random weights, and what they are merged into a model."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SIZE = 0.3  # of the random weights: an adapter changes most of the tokens of an answer
Json = dict[str, Any]


def linear_layers(model: PreTrainedModel, targets: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return (in, out) features of the linear layers whose names end in one of `targets`."""
    found = {}
    for path, module in model.named_modules():
        if path.rpartition(".")[2] in targets:
            shape = tuple(module.get_parameter("weight").shape)
            found[path] = (shape[0], shape[1]) if isinstance(module, Conv1D) else shape[::-1]
    return found


def write_adapter(
    folder: Path,
    model: PreTrainedModel,
    *,
    seed: int = 0,
    targets: Sequence[str] = ALL,
    ranks: Mapping[str, int] | None = None,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Write an adapter for `model`, of rank 4 where `ranks` (by path) has no other one."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for path, (n_in, n_out) in linear_layers(model, targets).items():
        rank = (ranks or {}).get(path, config.get("r", 4))
        for side, shape in (("A", (rank, n_in)), ("B", (n_out, rank))):
            random = torch.randn(shape, generator=generator) * SIZE
            tensors[f"base_model.model.{path}.lora_{side}.weight"] = random.to(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": list(targets)}
    write_config(folder, settings | config)
    return folder


def write_config(folder: Path, config: Json) -> None:
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")


def read_config(folder: Path) -> Json:
    config: Json = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    return config


def merged(
    model: PreTrainedModel, folder: Path, *, alphas: Mapping[str, float] | None = None
) -> PreTrainedModel:
    """Return a copy of `model` with W + scale * B A in the place of each adapted W.

    `alphas`: by path, where a layer has an alpha of its own.
    """
    copied = copy.deepcopy(model)
    config, tensors = read_config(folder), load_file(folder / "adapter_model.safetensors")
    for name, down in tensors.items():
        if name.endswith(".lora_A.weight"):
            path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            up = tensors[name.replace("lora_A", "lora_B")].float()
            alpha = (alphas or {}).get(path, config["lora_alpha"])
            rank = len(down)
            scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
            module = copied.get_submodule(path)
            change = scale * (up @ down.float())
            weight = module.get_parameter("weight")
            weight.data += change.T if isinstance(module, Conv1D) else change
    return copied
