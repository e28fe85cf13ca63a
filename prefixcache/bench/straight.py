"""The least that a warm request can cost: its new tokens, run straight on a filled store."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from prefixcache.config import EngineConfig
from prefixcache.engine.allocator import keep_freed_memory
from prefixcache.engine.loading import load_model
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.engine.sampling import Sampler, choose_tokens
from prefixcache.text import Tokenizer
from prefixcache.types import BlockId, SamplingParams, Span

FILL_TOKENS = 256  # a chunk while the store is filled


class StraightStep:
    """A model and a store with nothing around them: no tree, no scheduler, no HTTP."""

    def __init__(
        self, config: EngineConfig, *, env: Mapping[str, str], report: Callable[[str], None]
    ) -> None:
        keep_freed_memory(env)  # as the worker does
        self._loaded = load_model(config, env=env, report=report)
        pools = self._loaded.store.pools
        self._tables = tuple(  # a pool of a window's size is gone round again and again
            [Span(BlockId(0), n_blocks)] * -(-pools.n_blocks // n_blocks)
            for n_blocks in pools.group_blocks
        )
        self._sampler = Sampler(SamplingParams())

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own tokenizer."""
        assert self._loaded.tokenizer is not None, "load_model always loads one"
        return self._loaded.tokenizer

    def fill(self, token_ids: Sequence[int]) -> None:
        """Write the KV of a prefix, from position 0."""
        for start in range(0, len(token_ids), FILL_TOKENS):
            self._feed(token_ids[start : start + FILL_TOKENS], start)

    def seconds(self, token_ids: Sequence[int], first_position: int) -> float:
        """Return how long the new tokens take, from their ids to the id that follows them."""
        begin = time.perf_counter()
        self._feed(token_ids, first_position)
        return time.perf_counter() - begin

    def _feed(self, token_ids: Sequence[int], first_position: int) -> None:
        chunk = Chunk(list(token_ids), first_position, self._tables, n_logits=1)
        model = self._loaded.model
        store, is_invariant = self._loaded.store, model.is_invariant
        logits = model.forward(plan_step([chunk], store, model.device, invariant=is_invariant))
        choose_tokens([logits[0]], [self._sampler])
