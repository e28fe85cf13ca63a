"""The paged KV store: one pair of tensors a layer group, addressed by slot."""

from __future__ import annotations

import torch
from torch import Tensor

from prefixcache.errors import ConfigError
from prefixcache.kv.layout import KVLayout, KVPools
from prefixcache.types import BlockId, Span


class KVStore:
    """Keys and values of every block, for every layer.

    A slot is one position's room: slot = block * block_size_tokens + offset. For each group

        keys[layer]    +--------- n_slots ---------+
          kv head 0    | key_dim | key_dim | ...   |   one head's keys of consecutive slots
          kv head 1    | key_dim | key_dim | ...   |   are contiguous, so a run of blocks is a
          ...          +---------------------------+   slice that attention reads in place

    and the same for values. Keys are stored after rotation. All memory is taken and written
    once at start, so that a lack of it shows then and not in the middle of a request.
    """

    def __init__(self, layout: KVLayout, pools: KVPools | int, device: torch.device) -> None:
        """Take memory for all blocks on `device`.

        `pools`: how many blocks each group has; a number: so many of every group.

        Raises:
            ConfigError: the memory cannot be had.
        """
        if isinstance(pools, int):
            pools = KVPools(pools, (pools,) * len(layout.groups))
        self.layout = layout
        self.pools = pools
        self.n_blocks = pools.n_blocks  # positions, in blocks
        self.device = device
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._place = {
            layer: (group_index, layer_index)
            for group_index, group in enumerate(layout.groups)
            for layer_index, layer in enumerate(group.layers)
        }
        try:
            for group, n_blocks in zip(layout.groups, pools.group_blocks, strict=True):
                n_slots = n_blocks * layout.block_size_tokens
                shape = (len(group.layers), group.kv_heads, n_slots)
                for tensors, dim in (
                    (self._keys, group.key_dim),
                    (self._values, group.value_dim),
                ):
                    room = torch.empty((*shape, dim), dtype=layout.dtype, device=device)
                    tensors.append(room.fill_(0))
            self._views = {
                layer: (self._keys[group][index], self._values[group][index])
                for layer, (group, index) in self._place.items()
            }
        except (RuntimeError, MemoryError) as error:
            memory_bytes = self.memory_bytes
            reason = f"{memory_bytes} bytes could not be taken on {device}; lower it"
            raise ConfigError("kv_memory_bytes", memory_bytes, reason) from error

    @property
    def memory_bytes(self) -> int:
        """Bytes that the blocks of all groups take."""
        itemsize, size = self.layout.dtype.itemsize, self.layout.block_size_tokens
        sized = zip(self.layout.groups, self.pools.group_blocks, strict=True)
        return sum(n_blocks * size * group.bytes_per_token(itemsize) for group, n_blocks in sized)

    def group_of(self, layer: int) -> int:
        """Return the index of the layer group that holds `layer`."""
        return self._place[layer][0]

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return views of a layer's keys and values, each [kv_heads, n_slots, dim].

        Writing to them writes to the store.
        """
        return self._views[layer]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write the KV of t positions.

        Args:
            layer: the model's layer index.
            slots: int64 [t], no slot twice.
            keys, values: [kv_heads, t, dim].
        """
        layer_keys, layer_values = self.layer(layer)
        layer_keys.index_copy_(1, slots, keys.to(layer_keys.dtype))
        layer_values.index_copy_(1, slots, values.to(layer_values.dtype))

    def copy_block(self, group: int, source: BlockId, target: BlockId, n_tokens: int) -> None:
        """Copy the first `n_tokens` positions of a block, in every layer of `group`."""
        size = self.layout.block_size_tokens
        read = slice(source * size, source * size + n_tokens)
        write = slice(target * size, target * size + n_tokens)
        for tensor in (self._keys[group], self._values[group]):
            tensor[:, :, write] = tensor[:, :, read]

    def block_bytes(self, group: int) -> int:
        """Return the bytes that one block of a layer group takes."""
        shape = self.layout.groups[group]
        return shape.bytes_per_token(self.layout.dtype.itemsize) * self.layout.block_size_tokens

    def copy_out(self, group: int, span: Span) -> Tensor:
        """Copy consecutive blocks of a layer group to the host.

        Returns:
            uint8 [n_blocks, block_bytes]: a block's keys of all layers, then its values. Whoever
            writes it back with `copy_in` has the same bits in the store.
        """
        size = self.layout.block_size_tokens
        slots = slice(span.first * size, (span.first + span.n_blocks) * size)
        planes = [
            tensor[:, :, slots]
            .reshape(*tensor.shape[:2], span.n_blocks, size, -1)
            .permute(2, 0, 1, 3, 4)
            .reshape(span.n_blocks, -1)
            .view(torch.uint8)
            for tensor in (self._keys[group], self._values[group])
        ]
        return torch.cat(planes, dim=1).to("cpu")

    def copy_in(self, group: int, span: Span, data: Tensor) -> None:
        """Write to consecutive blocks what `copy_out` has read from as many.

        `data`: uint8 [n_blocks, block_bytes], on the host.
        """
        size = self.layout.block_size_tokens
        slots = slice(span.first * size, (span.first + span.n_blocks) * size)
        at = 0
        for tensor in (self._keys[group], self._values[group]):
            n_layers, kv_heads, _, dim = tensor.shape
            width = n_layers * kv_heads * size * dim * tensor.element_size()
            blocks = data[:, at : at + width].contiguous().view(tensor.dtype)
            shaped = blocks.view(span.n_blocks, n_layers, kv_heads, size, dim)
            tensor[:, :, slots] = shaped.permute(1, 2, 0, 3, 4).flatten(2, 3).to(tensor.device)
            at += width
