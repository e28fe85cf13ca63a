"""Feeding a step's shares to the model, so that one bad request fails alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from prefixcache.engine.budget import StepBudget
from prefixcache.engine.model import PagedModel
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.engine.shares import Share
from prefixcache.kv import KVStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the model gave for one share."""

    row: Tensor | None = None  # logits [vocab_size] where its sequence is up to date
    prompt_rows: Tensor | None = None  # [rows, vocab_size], of prompt tokens that want a score
    has_failed: bool = False


class Runner:
    """Runs shares as one batch, and tells the budget how long that took."""

    def __init__(
        self, model: PagedModel, store: KVStore, budget: StepBudget, clock: Callable[[], float]
    ) -> None:
        self._model = model
        self._store = store
        self._budget = budget
        self._clock = clock

    def run(self, shares: list[Share]) -> list[Outcome]:
        """Feed the shares as one batch; where that fails, each alone."""
        begin = self._clock()
        try:
            outcomes = self._rows(shares)
        except Exception:
            logger.exception("a step of %d requests failed; each is tried alone", len(shares))
            outcomes = [self._row_alone(share) for share in shares]
        self._budget.record(sum(share.n_tokens for share in shares), self._clock() - begin)
        return outcomes

    def _rows(self, shares: list[Share]) -> list[Outcome]:
        n_groups = len(self._store.layout.groups)
        chunks = [_chunk(share, n_groups) for share in shares]
        model = self._model
        step = plan_step(chunks, self._store, model.device, invariant=model.is_invariant)
        logits = model.forward(step)
        self._await_device()
        parts = torch.split(logits, [chunk.n_logits for chunk in chunks])
        return [_outcome(share, part) for share, part in zip(shares, parts, strict=True)]

    def _await_device(self) -> None:
        """Wait for the kernels, so that a step's time and errors are its own."""
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)

    def _row_alone(self, share: Share) -> Outcome:
        try:
            return self._rows([share])[0]
        except Exception:
            logger.exception("request %s failed", share.sequence.request.request_id)
            return Outcome(has_failed=True)


def _outcome(share: Share, logits: Tensor) -> Outcome:
    if share.sequence.n_computed + share.n_tokens < share.sequence.n_tokens:
        return Outcome(prompt_rows=logits if len(logits) else None)
    return Outcome(row=logits[-1], prompt_rows=logits[:-1] if len(logits) > 1 else None)


def _chunk(share: Share, n_groups: int) -> Chunk:
    """Return a share as the model is fed it."""
    sequence = share.sequence
    assert sequence.lease is not None
    start = sequence.n_computed
    stop = start + share.n_tokens
    return Chunk(
        token_ids=sequence.tokens(start, stop),
        first_position=start,
        tables=tuple(sequence.lease.spans(group) for group in range(n_groups)),
        n_logits=sequence.n_logits(stop),
    )
