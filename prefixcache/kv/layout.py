"""What one block of KV is: which layers, how many heads, how wide, how many bytes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

import torch

from prefixcache.config import Pruning
from prefixcache.kv.formats import KVFormat, kv_format

PROMPT_WINDOWS = 4  # a prompt so many windows long fills its share of all pools alike


@dataclass(frozen=True, slots=True)
class KVPools:
    """How many blocks there are: of positions, and of each layer group.

    A group with a window may have fewer than there are positions.
    """

    n_blocks: int
    group_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep KV for the same positions and in the same shape."""

    layers: tuple[int, ...]  # the model's layer indexes, ascending
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None  # a query sees this many positions, its own included; None: all
    lead: int = 0  # with a window: it sees so many of the first positions as well

    def bytes_per_token(self, kept: KVFormat) -> int:
        """Return the KV bytes that one position takes in all layers of the group."""
        planes = (*kept.keys.planes(self.key_dim), *kept.values.planes(self.value_dim))
        return len(self.layers) * self.kv_heads * sum(plane.n_bytes for plane in planes)

    def pruned(self, pruning: Pruning | None) -> LayerGroup:
        """Return it as `pruning` leaves it; a window of its own stays."""
        if pruning is None or self.window is not None:
            return self
        return replace(self, window=pruning.window_tokens, lead=pruning.lead_tokens)

    def blocks_seen(self, block_size_tokens: int) -> int | None:
        """Return the most blocks that one query's positions lie in; None: all before it."""
        if self.window is None:
            return None
        n_lead = -(-self.lead // block_size_tokens)
        return n_lead + -(-(self.window - 1) // block_size_tokens) + 1


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The layer groups of a model and the block they are stored in."""

    groups: tuple[LayerGroup, ...]
    block_size_tokens: int
    dtype: torch.dtype  # of what is written and read
    kept_as: str = "auto"  # the format; auto: numbers of that dtype

    @property
    def format(self) -> KVFormat:
        """How keys and values are kept."""
        return kv_format(self.kept_as, self.dtype)

    @property
    def bytes_per_token(self) -> int:
        """KV bytes that one position takes in all groups."""
        return sum(group.bytes_per_token(self.format) for group in self.groups)

    def pools_within(
        self, memory_bytes: int, *, longest_tokens: int | None, chunk_tokens: int, least_blocks: int
    ) -> KVPools:
        """Divide `memory_bytes` among the groups.

        A group with a window gets so much less than the others that a prompt of PROMPT_WINDOWS
        windows fills its share of both, but room for two windows and two chunks. Where every group
        has one, positions cost nothing: there are enough for the longest sequence.

        Args:
            memory_bytes: of all groups together.
            longest_tokens: no sequence is longer; None: not known.
            chunk_tokens: of a prompt, that a step has room for at least.
            least_blocks: a group has no fewer, unless there are fewer positions.

        Returns:
            The most blocks that fit; as many of every group where no window is narrow enough.
        """

        def blocks(group: LayerGroup, n_blocks: int) -> int:
            seen = group.blocks_seen(self.block_size_tokens)
            if seen is None or group.window is None:
                return n_blocks
            most_seen = group.window + group.lead
            filling = min(PROMPT_WINDOWS * most_seen, longest_tokens or memory_bytes)
            share = -(-n_blocks * seen * self.block_size_tokens // filling)
            chunks = 2 * -(-chunk_tokens // self.block_size_tokens) + 2
            return min(n_blocks, max(share, 2 * seen + chunks, least_blocks))

        kept, size = self.format, self.block_size_tokens

        def cost(n_blocks: int) -> int:
            return sum(
                blocks(group, n_blocks) * group.bytes_per_token(kept) * size
                for group in self.groups
            )

        most = 1
        while cost(most) <= memory_bytes:
            most *= 2
        n_blocks = bisect_right(range(most), memory_bytes, key=cost) - 1
        group_blocks = tuple(blocks(group, n_blocks) for group in self.groups)
        if n_blocks >= least_blocks and all(n < n_blocks for n in group_blocks):
            n_blocks = max(n_blocks, -(-(longest_tokens or 0) // size))
        return KVPools(n_blocks, group_blocks)
