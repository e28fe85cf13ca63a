"""Feeding a step's shares to the model, so that one bad request fails alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from prefixcache.engine.adapters import Adapting, LoadedAdapter
from prefixcache.engine.budget import StepBudget
from prefixcache.engine.index_groups import IndexGroups
from prefixcache.engine.model import PagedModel
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.engine.shares import Share
from prefixcache.kv import KVStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the model gave for one share."""

    rows: Tensor | None = None  # logits [1 + drafts, vocab_size] where its sequence is up to date
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
        self._groups = IndexGroups.of(store)
        self._adapting = Adapting()

    def use_model(self, model: PagedModel) -> None:
        """Feed another model from the next step on; its KV has the same layout."""
        self._adapting.close()
        self._model = model

    def run(self, shares: list[Share]) -> list[Outcome]:
        """Feed the shares as one batch; where that fails, each alone."""
        begin = self._clock()
        try:
            outcomes = self._rows(shares)
        except Exception:
            logger.exception("a step of %d requests failed; each is tried alone", len(shares))
            outcomes = [self._row_alone(share) for share in shares]
        self._budget.record(sum(share.n_rows for share in shares), self._clock() - begin)
        return outcomes

    def _rows(self, shares: list[Share]) -> list[Outcome]:
        chunks = [_chunk(share, self._groups) for share in shares]
        model = self._model
        step = plan_step(chunks, self._store, model.device, invariant=model.is_invariant)
        loaded = _adapters_of(shares)
        adapters = [(loaded[load_id], rows) for load_id, rows in step.adapters]
        with self._adapting.applied(adapters, step.token_ids.shape[1]):
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
    at = len(logits) - 1 - len(share.drafts)
    return Outcome(rows=logits[at:], prompt_rows=logits[:at] if at else None)


def _chunk(share: Share, groups: IndexGroups) -> Chunk:
    """Return a share as the model is fed it."""
    sequence = share.sequence
    assert sequence.lease is not None
    start = sequence.n_computed
    stop = start + share.n_tokens
    return Chunk(
        token_ids=[*sequence.tokens(start, stop), *share.drafts],
        first_position=start,
        tables=groups.tables(sequence.lease),
        n_logits=sequence.n_logits(stop) + len(share.drafts),
        first_blocks=groups.first_blocks(sequence.lease),
        leads=groups.lead_tables(sequence.lease),
        adapter=None if sequence.adapter is None else sequence.adapter.info.load_id,
    )


def _adapters_of(shares: list[Share]) -> dict[str, LoadedAdapter]:
    found = (share.sequence.adapter for share in shares)
    return {adapter.info.load_id: adapter for adapter in found if adapter is not None}
