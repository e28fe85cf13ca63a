"""How likely tokens were by the model's own logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from prefixcache.engine.steady import row_by_row
from prefixcache.types import TokenScore

_ROWS_AT_ONCE = 64  # so that a long prompt's rows are not all copied at once


def token_scores(logits: Tensor, tokens: Sequence[int], n_tops: Sequence[int]) -> list[TokenScore]:
    """Return the score of one token of each row, beside the `n_tops` most likely ones.

    Args:
        logits: float32 [rows, vocab_size], as the model gave them.
        tokens: of each row.
        n_tops: of each row, at least 0.
    """
    scores: list[TokenScore] = []
    for start in range(0, len(tokens), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        scores += _scores(logits[part], tokens[part], n_tops[part])
    return scores


def _norm(logits: Tensor) -> Tensor:
    return logits.logsumexp(dim=-1, keepdim=True)


def _scores(logits: Tensor, tokens: Sequence[int], n_tops: Sequence[int]) -> list[TokenScore]:
    norms = row_by_row(_norm, logits)
    places = torch.tensor(tokens, device=logits.device)[:, None]
    chosen = (logits.gather(1, places) - norms)[:, 0].tolist()
    best = torch.topk(logits, min(max(n_tops), logits.shape[-1]))
    logprobs, ids = (best.values - norms).tolist(), best.indices.tolist()
    return [
        TokenScore(token, chosen[row], tuple(zip(ids[row][:n], logprobs[row][:n], strict=True)))
        for row, (token, n) in enumerate(zip(tokens, n_tops, strict=True))
    ]
