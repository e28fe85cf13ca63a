"""GGUF files to folders that transformers loads in seconds."""

from __future__ import annotations

import struct
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from prefixcache.engine.model_cache import Report
from prefixcache.errors import ModelError

# What transformers raises about a file that it cannot read, and what writing can.
_FAILURES = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)


def convert_gguf(gguf_file: Path, folder: Path, *, report: Report) -> None:
    """Write the model in `gguf_file` to `folder`: safetensors, tokenizer and chat template.

    The weights are decoded to float32, so nothing of the file's own precision is lost. The
    folder is not written in one stroke: give it a new one and move it when this returns.

    Raises:
        ModelError: transformers cannot read the file, or has no way to read its architecture.

    Cost: about 20 seconds for 135 million weights; 4 bytes of memory and of disk per weight.
    """
    report(f"converting {gguf_file.name} to safetensors, once")
    try:
        _convert_model(gguf_file, folder)
        _convert_tokenizer(gguf_file, folder)
    except _FAILURES as error:
        raise ModelError(f"{gguf_file} cannot be converted: {error}") from error


def _convert_model(gguf_file: Path, folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent,
        gguf_file=gguf_file.name,
        dtype=torch.float32,
        trust_remote_code=False,
    )
    # The weights are plain float32 by now, but transformers goes on taking the model for a
    # quantized one and refuses to save it.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer = None
    model.save_pretrained(folder)


def _convert_tokenizer(gguf_file: Path, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, trust_remote_code=False
    )
    tokenizer.save_pretrained(folder)
