"""The attention of a model's steps with no model around it, for measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from prefixcache.engine.attention import paged_attention
from prefixcache.engine.plan import Chunk, Step, plan_step
from prefixcache.kv import KVLayout, KVStore, LayerGroup

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What a model's attention looks like."""

    n_layers: int
    heads: int
    kv_heads: int
    head_dim: int


class AttentionOnly:
    """A store full of random KV and layers that do nothing but attend, in float32 on the CPU."""

    def __init__(self, shape: AttentionShape, n_tokens: int) -> None:
        """Take room for the KV of `n_tokens` positions."""
        self._shape = shape
        layers = tuple(range(shape.n_layers))
        group = LayerGroup(layers, shape.kv_heads, shape.head_dim, shape.head_dim, None)
        layout = KVLayout((group,), BLOCK_TOKENS, torch.float32)
        self._store = KVStore(layout, -(-n_tokens // BLOCK_TOKENS), torch.device("cpu"))
        self._random = torch.Generator().manual_seed(0)
        self._modules = [_Layer(layer) for layer in layers]
        for layer in layers:
            for kv in self._store.layer(layer):
                kv.normal_(generator=self._random)

    def seconds(
        self, steps: Sequence[Sequence[Chunk]], clock: Callable[[], float], *, by_layer: bool
    ) -> float:
        """Return what planning and attending to some steps takes by `clock`, on one thread.

        `by_layer`: each layer attends to all steps before the next one does, as if they were one
        step; else one step ends before the next one begins.
        """
        n_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            tensors = [self._tensors(chunks) for chunks in steps]
            begin = clock()
            plans = [plan_step(chunks, self._store, self._store.device) for chunks in steps]
            work = list(zip(plans, tensors, strict=True))
            for each in [work] if by_layer else [[one] for one in work]:
                self._attend(each)
            return clock() - begin
        finally:
            torch.set_num_threads(n_threads)

    def _tensors(self, chunks: Sequence[Chunk]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a query and a key (or value), laid out as models do: by token."""
        n_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        heads, kv_heads = (
            torch.randn(1, n_tokens, n, self._shape.head_dim, generator=self._random)
            for n in (self._shape.heads, self._shape.kv_heads)
        )
        return heads.transpose(1, 2), kv_heads.transpose(1, 2)

    @torch.inference_mode()
    def _attend(self, work: Sequence[tuple[Step, tuple[torch.Tensor, torch.Tensor]]]) -> None:
        for module in self._modules:
            for step, (query, key) in work:
                paged_attention(module, query, key, key, None, step=step)


class _Layer(torch.nn.Module):
    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
