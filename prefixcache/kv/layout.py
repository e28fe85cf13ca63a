"""What one block of KV is: which layers, how many heads, how wide, how many bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep KV for the same positions and in the same shape."""

    layers: tuple[int, ...]  # the model's layer indexes, ascending
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None  # a query sees this many positions, its own included; None: all

    def bytes_per_token(self, itemsize: int) -> int:
        """Return the KV bytes that one position takes in all layers of the group."""
        return len(self.layers) * self.kv_heads * (self.key_dim + self.value_dim) * itemsize


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The layer groups of a model and the block they are stored in."""

    groups: tuple[LayerGroup, ...]
    block_size_tokens: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """KV bytes that one position takes in all groups."""
        return sum(group.bytes_per_token(self.dtype.itemsize) for group in self.groups)

    def blocks_within(self, memory_bytes: int) -> int:
        """Return how many blocks of every group fit into `memory_bytes` together."""
        return memory_bytes // (self.bytes_per_token * self.block_size_tokens)
