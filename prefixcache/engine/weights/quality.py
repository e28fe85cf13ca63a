"""How far a model with packed weights is from the same one in float32, and how fast it is."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from prefixcache.engine.loading import LoadedModel
from prefixcache.engine.plan import Chunk, Step, plan_step
from prefixcache.types import BlockId, Span

_CHUNK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Quality:
    """How a model predicts a text, beside a reference."""

    perplexity: float
    kl_mean: float  # Kullback-Leibler divergence of the reference from it, in nats a token
    kl_max: float
    agreement: float  # share of tokens after which both have the same best next token


def log_probabilities(loaded: LoadedModel, token_ids: Sequence[int], *, first: int = 0) -> Tensor:
    """Return float32 [tokens, vocab_size]: what follows each token, paged as served.

    Overwrites the store's first blocks, which must be unused, or have what an earlier call wrote
    of the tokens before `first`: these are not fed again.
    """
    parts = []
    for start in range(first, len(token_ids), _CHUNK_TOKENS):
        part = token_ids[start : start + _CHUNK_TOKENS]
        step = _step(loaded, [_chunk(loaded, part, start, 0)])
        rows = torch.arange(len(part), device=loaded.model.device)
        logits = loaded.model.forward(replace(step, logit_rows=rows))
        parts.append(torch.log_softmax(logits, dim=-1))
    return torch.cat(parts)


def quality(found: Tensor, reference: Tensor, token_ids: Sequence[int]) -> Quality:
    """Compare two results of `log_probabilities` for the same tokens."""
    sums = QualitySums()
    sums.add(found, reference, token_ids[1:])
    return sums.quality()


@dataclass(slots=True)
class QualitySums:
    """How a model predicts a text that is read piece by piece, beside a reference."""

    loss: float = 0.0
    divergence: float = 0.0
    most: float = 0.0
    n_agreeing: int = 0
    n_tokens: int = 0
    n_predicted: int = 0

    def add(self, found: Tensor, reference: Tensor, following: Sequence[int]) -> None:
        """Take rows of log-probabilities, and the tokens that follow all or all but the last."""
        n = len(following)
        rows = torch.tensor(following, dtype=torch.int64, device=found.device)[:, None]
        self.loss -= found[:n].gather(1, rows).double().sum().item()
        apart = torch.cat(
            [_divergence(*pair) for pair in zip(_parts(found), _parts(reference), strict=True)]
        )
        self.divergence += apart.sum().item()
        self.most = max(self.most, apart.max().item())
        self.n_agreeing += int((found.argmax(-1) == reference.argmax(-1)).sum())
        self.n_tokens += len(found)
        self.n_predicted += n

    def quality(self) -> Quality:
        """Return the means."""
        return Quality(
            perplexity=math.exp(self.loss / self.n_predicted),
            kl_mean=self.divergence / self.n_tokens,
            kl_max=self.most,
            agreement=self.n_agreeing / self.n_tokens,
        )


def step_ms(
    loaded: LoadedModel, *, n_rows: int, n_tokens: int, context: int, repeats: int
) -> float:
    """Return the median processor time in ms of a step, of all threads together.

    The step feeds `n_tokens` tokens to each of `n_rows` sequences that have `context` tokens in
    the store; its blocks must be unused, and are overwritten.
    """
    size = loaded.store.layout.block_size_tokens
    blocks = -(-(context + n_tokens) // size)
    token_ids = [token % loaded.info.vocab_size for token in range(n_tokens)]
    chunks = [_chunk(loaded, token_ids, context, row * blocks) for row in range(n_rows)]
    times = []
    for _ in range(repeats + 1):
        begin = time.process_time()
        loaded.model.forward(_step(loaded, chunks))
        times.append((time.process_time() - begin) * 1e3)
    return statistics.median(times[1:])


def _step(loaded: LoadedModel, chunks: Sequence[Chunk]) -> Step:
    model = loaded.model
    return plan_step(chunks, loaded.store, model.device, invariant=model.is_invariant)


def _chunk(loaded: LoadedModel, token_ids: Sequence[int], first: int, first_block: int) -> Chunk:
    n_blocks = -(-(first + len(token_ids)) // loaded.store.layout.block_size_tokens)
    tables = tuple([Span(BlockId(first_block), n_blocks)] for _ in loaded.store.layout.groups)
    return Chunk(token_ids, first, tables, n_logits=1)


def _parts(rows: Tensor) -> tuple[Tensor, ...]:
    """Cut rows so that their copies in double precision stay small."""
    return torch.tensor_split(rows, -(-len(rows) // 64))


def _divergence(found: Tensor, reference: Tensor) -> Tensor:
    found, reference = found.double(), reference.double()
    return (reference.exp() * (reference - found)).sum(dim=-1)
