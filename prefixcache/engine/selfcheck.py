"""Proof at load that a model gives the same logits paged and chunked as by itself."""

from __future__ import annotations

import torch

from prefixcache.engine.model import PagedModel
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.errors import EngineError, UnsupportedModelError
from prefixcache.kv import KVStore
from prefixcache.types import BlockId, Span

N_TOKENS = 24
CUTS = (0, 7, 16, 17, 23)  # chunk starts: inside a block, at its edge, single tokens
# Largest distance from the model's own logits, as a share of their length. Seen on eight models
# (2 to 30 layers): at most 2e-6, 6e-3 and 3.4e-2; with a scale off by a tenth 6.7e-2 and more.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def check_model(model: PagedModel, store: KVStore) -> None:
    """Feed a few tokens in chunks through `store` and compare with the model's own forward.

    Overwrites the first blocks of the store, which must be unused.

    Raises:
        UnsupportedModelError: the logits differ, or the model's attention asks for more
            than paged attention offers.
    """
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(model.vocab_size, (N_TOKENS,), generator=generator).tolist()
    expected = model.plain_logits(token_ids)
    n_blocks = -(-N_TOKENS // store.layout.block_size_tokens)
    tables = tuple([Span(BlockId(0), n_blocks)] for _ in store.layout.groups)
    limit = TOLERANCE[model.dtype]
    for start, stop in zip(CUTS, (*CUTS[1:], N_TOKENS), strict=True):
        chunk = Chunk(token_ids[start:stop], start, tables, wants_logits=True)
        try:
            found = model.forward(plan_step([chunk], store, model.device))[0]
        except (EngineError, TypeError, RuntimeError) as error:
            raise UnsupportedModelError(model.architecture, str(error)) from error
        wanted = expected[stop - 1]
        difference = ((found - wanted).norm() / wanted.norm()).item()
        if not difference <= limit:
            reason = (
                f"its logits with the paged cache differ from its own by a share of"
                f" {difference:.2g} (allowed {limit:.2g})"
            )
            raise UnsupportedModelError(model.architecture, reason)
