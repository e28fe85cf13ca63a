"""Proof at load that a model gives the same logits paged and chunked as by itself."""

from __future__ import annotations

import math
import statistics

import torch

from prefixcache.engine.families import unsupported
from prefixcache.engine.model import PagedModel
from prefixcache.engine.narrowing import narrowed_windows
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.engine.weights.products import WeightKind
from prefixcache.kv import KVStore
from prefixcache.types import BlockId, Span

N_TOKENS = 24
TRIED_WINDOW = 8  # wider windows are made as narrow for the check, so that it goes beyond them
CUTS = (0, 3, 5, 7, 11, 13, 16, 17, 19, 21, 23)  # chunk starts: in a block, at its edge, single
# Largest median distance from the model's own logits, as a share of their length. In 16 bits a
# deep healthy model may be a tenth off, so there the check tells gross faults alone.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 1.5e-1}

# Where products round their rows, a last bit tips roundings, and their sum grows with depth.
ROUNDING_TOLERANCE: dict[WeightKind, float] = {"bfloat16": 5e-2, "int8": 1e-1}


def check_model(model: PagedModel, store: KVStore, *, weights: WeightKind | None = None) -> None:
    """Feed a few tokens in chunks through `store` and compare with the model's own forward.

    Overwrites the first blocks of the store, which must be unused. Both run with the same
    packed weights, if any, so that what packing rounds does not count, and with windows so narrow
    that some keys lie beyond them. A model whose windows cannot be narrowed (its attention is not
    called with what its configuration says) is tried with those that it has.

    Raises:
        UnsupportedModelError: the logits differ, or the model's attention asks for more
            than paged attention offers.
    """
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(model.vocab_size, (N_TOKENS,), generator=generator).tolist()
    try:
        with narrowed_windows(model, store, TRIED_WINDOW) as narrow:
            differences = _differences(model, narrow, token_ids)
    except Exception as error:  # the edge to a model's own code: whatever it raises, it is refused
        raise unsupported(model.architecture, f"it failed its check: {error}") from error
    # In float32 every row must agree. In 16 bits single rows wander far, their median does not.
    is_exact = model.dtype == torch.float32 and weights not in ROUNDING_TOLERANCE
    difference = max(differences) if is_exact else statistics.median(differences)
    limit = TOLERANCE.get(model.dtype, TOLERANCE[torch.float32])
    if weights is not None:
        limit = ROUNDING_TOLERANCE.get(weights, limit)
    if not (all(map(math.isfinite, differences)) and difference <= limit):
        reason = (
            f"its logits with the paged cache differ from its own by a share of"
            f" {difference:.2g} (allowed {limit:.2g})"
        )
        raise unsupported(model.architecture, reason)


def _differences(model: PagedModel, store: KVStore, token_ids: list[int]) -> list[float]:
    """Return, for each chunk's last row, how far it is from the model's own, as a share."""
    expected = model.plain_logits(token_ids)
    n_blocks = -(-N_TOKENS // store.layout.block_size_tokens)
    tables = tuple([Span(BlockId(0), n_blocks)] for _ in store.layout.groups)
    differences = []
    for start, stop in zip(CUTS, (*CUTS[1:], N_TOKENS), strict=True):
        chunk = Chunk(token_ids[start:stop], start, tables, n_logits=1)
        step = plan_step([chunk], store, model.device, invariant=model.is_invariant)
        found = model.forward(step)[0]
        wanted = expected[stop - 1]
        differences.append(((found - wanted).norm() / wanted.norm()).item())
    return differences
