"""Proof at load that a model's logits do not depend on how its tokens are fed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from prefixcache.engine.model import PagedModel
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.errors import UnsupportedModelError
from prefixcache.kv import KVStore
from prefixcache.types import BlockId, Span

N_TOKENS = 24  # of a sequence, as in the other check: the pool holds them
CUTS = ((0,), (0, 1, 2, 5, 9, 13, 14, 23), (0, 7, 8, 16, 20))  # chunk starts


def check_invariance(model: PagedModel, store: KVStore) -> None:
    """Feed a sequence whole, in pieces and beside others, and compare every logit's bits.

    Overwrites the first blocks of the store, which must be unused.

    Raises:
        UnsupportedModelError: some logits differ.
    """
    generator = torch.Generator().manual_seed(0)
    n_others = min(3, store.n_blocks // _n_blocks(store) - 1)
    tokens = torch.randint(model.vocab_size, (n_others + 1, N_TOKENS), generator=generator)
    sequences: list[list[int]] = tokens.tolist()
    wanted = _logits(model, store, sequences[:1], CUTS[0])
    for cuts in CUTS:
        for n_beside in range(n_others + 1):
            found = _logits(model, store, sequences[: n_beside + 1], cuts)
            if not torch.equal(found, wanted):
                reason = (
                    f"its logits change with {n_beside} other requests or in {len(cuts)} pieces,"
                    " so it cannot be served with --invariant"
                )
                raise UnsupportedModelError(model.architecture, reason)


def _logits(
    model: PagedModel, store: KVStore, sequences: Sequence[list[int]], cuts: Sequence[int]
) -> Tensor:
    """Return all logits of the first sequence; the others are fed in the same steps."""
    found = []
    for start, stop in zip(cuts, (*cuts[1:], N_TOKENS), strict=True):
        chunks = []
        for index, tokens in enumerate(sequences):
            span = Span(BlockId(index * _n_blocks(store)), _n_blocks(store))
            tables = tuple([span] for _ in store.layout.groups)
            n_logits = 0 if index else stop - start
            chunks.append(Chunk(tokens[start:stop], start, tables, n_logits))
        found.append(model.forward(plan_step(chunks, store, model.device, invariant=True)))
    return torch.cat(found)


def _n_blocks(store: KVStore) -> int:
    return -(-N_TOKENS // store.layout.block_size_tokens)
