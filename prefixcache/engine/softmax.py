"""Softmax attention that tells its log-sum-exp, and the merge of what it gives for two parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MOST_SCORES = 2**24  # numbers that plain products hold at a time: 64 MB, and some times that


@dataclass(frozen=True, slots=True)
class Scores:
    """How queries and keys become scores: all that a model can say about it stands here."""

    scale: float
    softcap: float | None = None  # scores s become softcap * tanh(s / softcap), before any mask

    @property
    def is_plain(self) -> bool:
        """Whether a kernel that knows nothing but a scale computes them."""
        return self.softcap is None

    def of(self, query: Tensor, key: Tensor) -> Tensor:
        """Return float32 scores [..., n, k] of query [..., n, dim] and key [..., k, dim]."""
        scores = torch.matmul(query.float() * self.scale, key.float().transpose(-1, -2))
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        return scores


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scores: Scores,
    bias: Tensor | None = None,
    *,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attend from query [a, b, n, dim] to key [a, b, k, dim] and value [a, b, k, value_dim].

    On a CPU with equal head sizes this is torch's flash kernel; elsewhere plain products.

    Args:
        query, key, value: any strides, but a row's numbers lie side by side.
        scores: how scores are made.
        bias: added to the scores; [n, k] or [b, n, k], in the query's dtype.
        causal: row i sees keys 0 to i; as many keys as rows, and no bias.

    Returns:
        Output [a, b, n, value_dim] in the query's dtype and log-sum-exp of the scores [a, b, n]
        in float32. In memory both are [a, n, b, ...].
    """
    is_flash = query.is_cpu and key.shape[-1] == value.shape[-1] and scores.is_plain
    if bias is not None and bias.dim() == 3:
        bias = bias.unsqueeze(0)
    if not is_flash:
        return _plain_attention(query, key, value, scores, bias, causal=causal)
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=bias, scale=scores.scale
    )
    return output, lse


def merge_into(output: Tensor, lse: Tensor, part_output: Tensor, part_lse: Tensor) -> None:
    """Take one more part, over other keys, into what `output` and `lse` already hold.

    Args:
        output, lse: float32 [a, n, dim] and [a, n]; zero and -inf before the first part. Changed.
        part_output, part_lse: the same shapes; `part_lse` is finite.
    """
    weight = torch.sigmoid(part_lse - lse).unsqueeze(-1)
    output.lerp_(part_output.to(output.dtype), weight)
    torch.logaddexp(lse, part_lse, out=lse)


def _plain_attention(
    query: Tensor, key: Tensor, value: Tensor, scores: Scores, bias: Tensor | None, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Attend by plain products, to so many rows at a time that their scores take bounded memory."""
    n_rows, n_keys = query.shape[-2], key.shape[-2]
    if causal:
        ones = torch.ones(n_rows, n_keys, dtype=torch.bool, device=query.device)
        bias = torch.zeros_like(ones, dtype=torch.float32).masked_fill_(ones.triu_(1), -torch.inf)
    n_at_once = max(MOST_SCORES // (query.shape[0] * query.shape[1] * n_keys), 1)
    outputs, sums = [], []
    for start in range(0, n_rows, n_at_once):
        rows = slice(start, start + n_at_once)
        mine = None if bias is None else bias[..., rows, :]
        output, lse = _plain_rows(query[..., rows, :], key, value, scores, mine)
        outputs.append(output)
        sums.append(lse)
    return torch.cat(outputs, dim=-2), torch.cat(sums, dim=-1)


def _plain_rows(
    query: Tensor, key: Tensor, value: Tensor, scores: Scores, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    found = scores.of(query, key)
    if bias is not None:
        found = found + bias
    lse = torch.logsumexp(found, dim=-1)
    weights = found.sub_(lse.unsqueeze(-1)).exp_()
    return torch.matmul(weights, value.float()).to(query.dtype), lse
