"""Attention over runs of the store, in the form that transformers' models call.

A query row sees several pieces of keys: runs of cached blocks and the new keys of its own
chunk. Each piece is one call without a gather; the parts are merged by their log-sum-exp
(the online softmax of arXiv:1805.02867, as in arXiv:2402.02082 for shared prefixes).
"""

from __future__ import annotations

import torch
from torch import Tensor

from prefixcache.engine.plan import Piece, Rows, Step
from prefixcache.errors import EngineError

NAME = "prefixcache"  # under which transformers knows it
IGNORED = frozenset({"position_ids", "use_cache", "output_attentions", "is_causal"})


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    step: Step,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **extras: object,
) -> tuple[Tensor, None]:
    """Attend from the packed rows of a step to what each of them may see.

    Args:
        module: the attention layer; `layer_idx` names its KV.
        query: [1, heads, t, key_dim], the rows of every chunk one after another.
        key, value: [1, kv_heads, t, dim], already written to the store by the cache object.
        attention_mask: unused; what a row sees is in `step`.
        step: the plan of this forward, passed through the model's keyword arguments.
        scaling: of the scores; None: key_dim ** -0.5.
        dropout: unused; models serve in evaluation mode.
        sliding_window: unused; the probe at load has put it into the layer's group.
        extras: what else the model passes; anything that would change scores is refused.

    Returns:
        [1, t, heads, value_dim] and None in place of the weights.

    Raises:
        EngineError: the model asks for a feature of attention that this function lacks.
    """
    _refuse_unknown(extras)
    layer = module.layer_idx
    assert isinstance(layer, int)
    group = step.groups[step.store.group_of(layer)]
    keys, values = step.store.layer(layer)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = query.new_empty(query.shape[2], query.shape[1], value.shape[-1])
    for rows in group.rows:
        mine = slice(rows.start, rows.stop)
        output[mine] = _attend(
            query[0, :, mine], key[0, :, mine], value[0, :, mine], rows, keys, values, scale
        )
    return output.unsqueeze(0), None


def _refuse_unknown(extras: dict[str, object]) -> None:
    for name, found in extras.items():
        if found is not None and found is not False and name not in IGNORED:
            raise EngineError(f"the model's attention uses {name!r}, which is not supported yet")


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Rows,
    keys: Tensor,
    values: Tensor,
    scale: float,
) -> Tensor:
    """Return [n, heads, value_dim] for the n rows of one chunk.

    `query` is [heads, n, dim]; `key` and `value` are the chunk's own, [kv_heads, n, dim];
    `keys` and `values` are the store's, [kv_heads, n_slots, dim].
    """
    heads, n, _ = query.shape
    kv_heads = keys.shape[0]
    folded = query.reshape(kv_heads, heads // kv_heads * n, -1)
    parts = [
        _part(folded, keys[:, p.start : p.stop], values[:, p.start : p.stop], p.mask, scale)
        for p in rows.pieces
    ]
    if rows.own is not None:
        parts.append(_own_part(query, key, value, rows.own, scale))
    merged = parts[0][0] if len(parts) == 1 else _merge(parts)
    return merged.reshape(heads, n, -1).transpose(0, 1)


def _own_part(
    query: Tensor, key: Tensor, value: Tensor, own: Piece, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend causally within the chunk itself; shapes as in `_part`."""
    heads, n, _ = query.shape
    kv_heads = key.shape[0]
    if own.mask is not None:
        folded = query.reshape(kv_heads, heads // kv_heads * n, -1)
        return _part(folded, key, value, own.mask, scale)
    wide_key = key.repeat_interleave(heads // kv_heads, dim=0)
    wide_value = value.repeat_interleave(heads // kv_heads, dim=0)
    output, lse = _attention(query, wide_key, wide_value, None, causal=True, scale=scale)
    return output.reshape(kv_heads, -1, output.shape[-1]), lse.reshape(kv_heads, -1)


def _part(
    folded: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Attend from all query heads of a key head at once.

    Args:
        folded: [kv_heads, heads_per_kv_head * n, dim], heads outermost.
        key, value: [kv_heads, k, dim].
        mask: bool [n, k], True where a row sees a key; None: everywhere.
        scale: of the scores.

    Returns:
        Output [kv_heads, heads_per_kv_head * n, value_dim] and log-sum-exp of the scores
        [kv_heads, heads_per_kv_head * n] in float32, -inf where a row sees no key.
    """
    if mask is None:
        return _attention(folded, key, value, None, causal=False, scale=scale)
    wide = mask.repeat(folded.shape[1] // mask.shape[0], 1)
    output, lse = _attention(folded, key, value, wide, causal=False, scale=scale)
    blind = ~wide.any(dim=-1)
    return output.masked_fill(blind[:, None], 0.0), lse.masked_fill(blind, -torch.inf)


def _merge(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Join attention over disjoint keys; every row sees a key in at least one part."""
    lses = torch.stack([lse for _, lse in parts])
    weights = torch.exp(lses - torch.logsumexp(lses, dim=0)).unsqueeze(-1)
    merged = weights[0] * parts[0][0]
    for weight, (output, _) in zip(weights[1:], parts[1:], strict=True):
        merged.addcmul_(weight, output.to(merged.dtype))
    return merged.to(parts[0][0].dtype)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Softmax attention of [heads, n, dim] with its log-sum-exp [heads, n] in float32.

    On a CPU with equal head sizes this is torch's flash kernel; elsewhere plain products.
    `causal` asks for as many keys as queries.
    """
    if query.device.type != "cpu" or key.shape[-1] != value.shape[-1]:
        return _plain_attention(query, key, value, mask, causal=causal, scale=scale)
    bias = None
    if mask is not None:
        bias = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query.unsqueeze(0),
        key.unsqueeze(0),
        value.unsqueeze(0),
        0.0,
        causal,
        attn_mask=bias,
        scale=scale,
    )
    return output[0], lse[0]


def _plain_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    scores = torch.matmul(query.float() * scale, key.float().transpose(-1, -2))
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return torch.matmul(weights, value.float()).to(query.dtype), lse
