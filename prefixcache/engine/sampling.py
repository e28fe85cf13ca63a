"""Choosing the next token from a row of logits."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from prefixcache.types import SamplingParams

GREEDY_BELOW = 1e-5  # a temperature that float32 logits cannot tell from 0
HOTTEST = 1e9  # every token is as likely as the next long before

logger = logging.getLogger(__name__)


class Sampler:
    """Draws one sequence's tokens; its generator goes on where it stood after a preemption."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._generator = torch.Generator()
        if self.is_greedy:
            return
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed)

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken, without chance."""
        return self._params.temperature < GREEDY_BELOW

    def draw(self, logits: Tensor) -> int:
        """Return a token id drawn from float32 logits [vocab_size].

        Order of the filters: temperature, top_k, top_p, as in transformers and vLLM.
        Cost: O(vocab_size log vocab_size) on the host when top_p or top_k is set.
        """
        logits = logits.cpu()
        scaled = (logits - logits.max()) / min(self._params.temperature, HOTTEST)
        if self._params.top_k is None and self._params.top_p >= 1:
            return self._pick(torch.softmax(scaled, dim=-1))
        k = min(self._params.top_k or scaled.shape[-1], scaled.shape[-1])
        best, ids = torch.topk(scaled, k)
        chances = torch.softmax(best, dim=-1)
        before = chances.cumsum(dim=-1) - chances  # the mass of the better ones
        is_cut = before >= self._params.top_p
        is_cut[0] = False  # the best one stays, however small top_p is
        chances = chances.masked_fill(is_cut, 0.0)
        return int(ids[self._pick(chances)])

    def _pick(self, chances: Tensor) -> int:
        return int(torch.multinomial(chances, 1, generator=self._generator))


def choose_tokens(rows: list[Tensor], samplers: list[Sampler]) -> list[int | None]:
    """Return one token for each row of logits [vocab_size], by the row's sampler.

    A row that holds a NaN or no finite value, or from which nothing can be drawn, gives None:
    that sequence cannot go on.
    """
    logits = torch.stack(rows)
    best = logits.max(dim=-1)
    finite = torch.isfinite(best.values).tolist()
    greedy = best.indices.tolist()
    return [
        (greedy[row] if sampler.is_greedy else _drawn(sampler, logits[row]))
        if finite[row]
        else None
        for row, sampler in enumerate(samplers)
    ]


def _drawn(sampler: Sampler, row: Tensor) -> int | None:
    try:
        return sampler.draw(row)
    except RuntimeError:
        logger.exception("no token could be drawn")
        return None
