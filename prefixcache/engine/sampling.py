"""Choosing the next token of each sequence from the rows of logits of a step."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prefixcache.engine.adjusting import Adjustment, adjust
from prefixcache.engine.drawing import draw_tokens
from prefixcache.engine.grammar import WORD_BITS, Matcher
from prefixcache.engine.scoring import token_scores
from prefixcache.types import SamplingParams, TokenScore

GREEDY_BELOW = 1e-5  # a temperature that float32 logits cannot tell from 0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pick:
    """A chosen token, and how likely it was where that was asked for."""

    token: int
    score: TokenScore | None = None


class Sampler:
    """What one sequence's tokens are chosen by: its settings, its chance and what it has said.

    It goes on where it stood after a preemption.
    """

    def __init__(
        self, params: SamplingParams, *, prompt: Sequence[int] = (), end_ids: Sequence[int] = ()
    ) -> None:
        """Begin an answer.

        Args:
            params: how to choose.
            prompt: what the repetition penalty also counts for.
            end_ids: the tokens that would end the answer.
        """
        self.params = params
        self.adjustment = Adjustment.of(params, prompt, end_ids)
        self.matcher: Matcher | None = None  # of the grammar, once that is compiled
        self._chance = _chance(params)

    @property
    def is_greedy(self) -> bool:
        """Whether the best token is taken, without chance."""
        return self.params.temperature < GREEDY_BELOW

    def point(self) -> float:
        """Return the next number of the sequence's own chance, in [0, 1)."""
        return self._chance.random()

    def said(self, token: int) -> None:
        """Take the token that was chosen into account."""
        if self.adjustment is not None:
            self.adjustment.said(token)
        if self.matcher is not None:
            self.matcher.advance(token)


def choose_tokens(rows: Sequence[Tensor], samplers: Sequence[Sampler]) -> list[Pick | None]:
    """Return one token for each row of logits [vocab_size], by the row's sampler.

    A row that holds a NaN or no finite value, or whose grammar cannot go on, gives None: that
    sequence cannot go on. The rows are left as they are.
    """
    logits = torch.stack(list(rows))
    adjustments = [sampler.adjustment for sampler in samplers]
    scored = [row for row, each in enumerate(samplers) if each.params.top_scores is not None]
    raw = logits[scored] if scored else None
    if any(each is not None for each in adjustments):
        adjust(logits, adjustments)
    _mask(logits, samplers)
    tokens = _chosen(logits, samplers)
    scores = {} if raw is None else _scores(raw, scored, tokens, samplers)
    for sampler, token in zip(samplers, tokens, strict=True):
        if token is not None:
            sampler.said(token)
    return [
        None if token is None else Pick(token, scores.get(row)) for row, token in enumerate(tokens)
    ]


def _mask(logits: Tensor, samplers: Sequence[Sampler]) -> None:
    """Leave only what its grammar allows in each row, all rows at once."""
    found = [(row, each.matcher) for row, each in enumerate(samplers) if each.matcher is not None]
    if not found:
        return
    width = logits.shape[-1]
    words = torch.zeros(len(found), found[0][1].n_words, dtype=torch.int32)
    for index, (_, matcher) in enumerate(found):
        matcher.allow(words[index])
    bits = words[:, :, None] >> torch.arange(WORD_BITS, dtype=torch.int32) & 1
    is_banned = (bits == 0).view(len(found), -1)[:, :width].to(logits.device)
    rows = torch.tensor([row for row, _ in found], device=logits.device)
    logits[rows] = logits[rows].masked_fill_(is_banned, -torch.inf)


def _chosen(logits: Tensor, samplers: Sequence[Sampler]) -> list[int | None]:
    best = logits.max(dim=-1)
    greedy = best.indices.tolist()
    is_finite = torch.isfinite(best.values).tolist()
    tokens = [token if is_finite[row] else None for row, token in enumerate(greedy)]
    drawn = [row for row, each in enumerate(samplers) if not each.is_greedy and is_finite[row]]
    if drawn:
        found = draw_tokens(
            logits[drawn].cpu(),
            best.values[drawn].cpu(),
            [samplers[row].params for row in drawn],
            [samplers[row].point() for row in drawn],
        )
        for row, token in zip(drawn, found, strict=True):
            tokens[row] = token
    return tokens


def _scores(
    raw: Tensor, rows: list[int], tokens: list[int | None], samplers: Sequence[Sampler]
) -> dict[int, TokenScore]:
    """Return the scores of the rows that want one; `raw` has those rows' logits alone."""
    chosen = [tokens[row] or 0 for row in rows]  # one that has no token has no use for a score
    n_tops = [samplers[row].params.top_scores or 0 for row in rows]
    return dict(zip(rows, token_scores(raw, chosen, n_tops), strict=True))


def _chance(params: SamplingParams) -> random.Random:
    """Return a generator of its own for every seed of 64 bits and every choice."""
    if params.seed is None:
        return random.Random()  # noqa: S311  (no secrets hang on it)
    return random.Random(f"{params.seed}/{params.choice}")  # noqa: S311  (hashed: all bits count)
