"""A digest of all that makes a model compute the keys and values that it does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import torch
import transformers
import xxhash
from torch import Tensor
from transformers import PreTrainedModel

from prefixcache.kv import KVLayout

_FORMAT = 1  # raised when our own code makes KV differ, or lays it out another way
_NO_MATTER = ("_name_or_path", "name_or_path", "transformers_version", "architectures")
_PIECE_BYTES = 64 * 2**20


def model_fingerprint(model: PreTrainedModel, layout: KVLayout, kv_format: str) -> bytes:
    """Return 16 bytes that are the same for the same weights, settings and libraries.

    To be called before weights are packed; `kv_format` says how they will be. The tokenizer has
    no part in it: token ids are compared, whatever text they stand for.

    Cost: the weights are read once, about 0.1 s a GB.
    """
    digest = xxhash.xxh3_128()
    versions = (_FORMAT, layout.format.version, torch.__version__, transformers.__version__)
    for text in (*map(str, versions), kv_format, repr(layout), _settings(model)):
        digest.update(text.encode() + b"\0")
    digest.update(tensors_fingerprint(model.state_dict().items()))
    return digest.digest()


def tensors_fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> bytes:
    """Return 16 bytes that are the same for the same named tensors."""
    digest = xxhash.xxh3_128()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        for piece in _pieces(tensor):
            digest.update(piece)
    return digest.digest()


def _settings(model: PreTrainedModel) -> str:
    found = {key: value for key, value in model.config.to_dict().items() if key not in _NO_MATTER}
    return json.dumps(found, sort_keys=True, default=str)


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    flat = tensor.detach().contiguous().reshape(-1)
    step = max(_PIECE_BYTES // max(flat.element_size(), 1), 1)
    for at in range(0, len(flat), step):
        yield flat[at : at + step].cpu().view(torch.uint8).numpy().data
