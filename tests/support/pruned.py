"""A transformers model whose layers see first and recent tokens alone: the oracle of pruning."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from prefixcache.config import Pruning


def prune_reference(model: PreTrainedModel, setting: str) -> None:
    """Have a model's own forward, and so its `generate`, attend as `kv_prune` = `setting` says."""
    name = f"pruned to {setting}"
    AttentionInterface.register(name, partial(_pruned_attention, pruning=Pruning.read(setting)))
    AttentionMaskInterface.register(name, eager_mask)
    model.set_attn_implementation(name)


def _pruned_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    pruning: Pruning,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Softmax over every visible key, by the plain formula; a layer's own window stays."""
    n_rows, n_keys = query.shape[2], key.shape[2]
    wide = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(wide, 1).mT
    scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if attention_mask is not None:
        scores = scores + attention_mask[..., :n_keys]
    if sliding_window is None:
        keys = torch.arange(n_keys)
        distance = torch.arange(n_keys - n_rows, n_keys)[:, None] - keys
        seen = (distance < pruning.window_tokens) | (keys < pruning.lead_tokens)
        scores = scores.masked_fill(~(seen & (distance >= 0)), -torch.inf)
    if s_aux is not None:
        sinks = s_aux.view(1, -1, 1, 1).expand(len(scores), -1, n_rows, 1)
        scores = torch.cat([scores, sinks], -1)
    weights = torch.softmax(scores, -1)[..., :n_keys]
    return (weights @ value.repeat_interleave(wide, 1)).transpose(1, 2), None
