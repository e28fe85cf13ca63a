"""Drawing tokens from many rows of logits at once, each by its own settings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from prefixcache.engine.steady import row_by_row, steady_exp
from prefixcache.types import SamplingParams

HOTTEST = 1e9  # every token is as likely as the next long before
CANDIDATES = 256  # the most likely tokens that are looked at first; mostly they hold top_p


def draw_tokens(
    logits: Tensor, best: Tensor, params: Sequence[SamplingParams], points: Sequence[float]
) -> list[int]:
    """Return one token id for each row.

    Order of the filters: temperature, min_p, top_k, top_p, as in vLLM. A row's token depends on
    its own logits, settings and point alone, never on the other rows.

    Args:
        logits: float32 [rows, vocab_size] on the host.
        best: [rows], the largest of each row; finite.
        params: of each row.
        points: of each row: where in [0, 1) of its distribution the token is taken.

    Cost: O(vocab_size) for a row, and with top_k or top_p its best tokens are sorted besides:
    all that may matter, where the best 256 hold less than top_p.
    """
    temperatures = torch.tensor([min(p.temperature, HOTTEST) for p in params])
    weights = steady_exp((logits - best[:, None]) / temperatures[:, None])  # the best one's is 1
    if any(p.min_p for p in params):
        floors = torch.tensor([p.min_p for p in params])
        weights.masked_fill_(weights < floors[:, None], 0.0)
    tokens = [0] * len(params)
    for width, rows in _by_width(params, logits.shape[-1]).items():
        mine = [params[row] for row in rows]
        taken = _taken(weights[rows], mine, [points[row] for row in rows], width)
        for row, token in zip(rows, taken, strict=True):
            tokens[row] = token
    return tokens


def _by_width(params: Sequence[SamplingParams], vocab_size: int) -> dict[int | None, list[int]]:
    """Return the rows by how many of their best tokens matter; None: all, so none is sorted."""
    rows: dict[int | None, list[int]] = defaultdict(list)
    for row, each in enumerate(params):
        if each.top_k is not None:
            rows[min(each.top_k, vocab_size)].append(row)
        elif each.top_p < 1:
            rows[min(CANDIDATES, vocab_size)].append(row)
        else:
            rows[None].append(row)
    return rows


def _taken(
    weights: Tensor, params: list[SamplingParams], points: list[float], width: int | None
) -> list[int]:
    if width is None:
        return [int(token) for token in _at(weights, points)]
    best, ids = torch.topk(weights, width)
    sums = best.cumsum(dim=-1, dtype=torch.float64)
    total = torch.where(
        torch.tensor([p.top_k is None for p in params]),
        row_by_row(_total, weights)[:, 0],
        sums[:, -1],
    )
    limits = torch.tensor([p.top_p for p in params], dtype=torch.float64) * total
    tokens = ids.gather(1, _at(_nucleus(best, sums, limits), points)[:, None])[:, 0].tolist()
    is_short = (sums[:, -1] < limits) & (width < weights.shape[-1])
    for row in is_short.nonzero()[:, 0].tolist():
        tokens[row] = _of_many(weights[row], float(limits[row]), points[row])
    return tokens


def _total(weights: Tensor) -> Tensor:
    return weights.sum(dim=-1, keepdim=True, dtype=torch.float64)


def _of_many(weights: Tensor, limit: float, point: float) -> int:
    """Return a token of the nucleus of one row [vocab_size], however many that has.

    Tokens as likely as the last one of it belong to it. numpy sorts a row in 0.1 ms, torch in 10.
    """
    falling = np.sort(weights.numpy())[::-1]
    last = int(np.searchsorted(np.cumsum(falling, dtype=np.float64), limit))
    least = float(falling[min(last, len(falling) - 1)])
    return int(_at(weights.where(weights >= least, 0.0)[None], [point])[0])


def _nucleus(best: Tensor, sums: Tensor, limits: Tensor) -> Tensor:
    """Return weights, sorted and summed up, with 0 where the better ones hold the limit."""
    is_kept = sums - best < limits[:, None]
    is_kept[:, 0] = True  # however small top_p is
    return best.where(is_kept, 0.0)


def _at(weights: Tensor, points: list[float]) -> Tensor:
    """Return which column each row's point falls into; columns are as wide as their weights."""
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    total = sums[:, -1:]
    places = torch.tensor(points, dtype=torch.float64)[:, None] * total
    below = torch.minimum(places, torch.nextafter(total, torch.full_like(total, -math.inf)))
    return torch.searchsorted(sums, below, right=True)[:, 0]
