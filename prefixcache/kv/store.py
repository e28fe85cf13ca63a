"""The paged KV store: a few tensors a layer group, addressed by slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from prefixcache.errors import ConfigError
from prefixcache.kv.codecs import Cast
from prefixcache.kv.kept import Kept
from prefixcache.kv.layout import KVLayout, KVPools, LayerGroup
from prefixcache.kv.slots import Slots
from prefixcache.kv.turning import Turning
from prefixcache.types import BlockId, Span


class KVStore:
    """Keys and values of every block, for every layer.

    A slot is one position's room: slot = block * block_size_tokens + offset. For each group

        plane[layer]   +--------- n_slots ---------+
          kv head 0    |  width  |  width  | ...   |   what one head keeps of consecutive slots
          kv head 1    |  width  |  width  | ...   |   is contiguous, so a run of blocks is a
          ...          +---------------------------+   slice

    Where numbers are kept as they are computed, keys have one plane and values another, and
    attention reads the slice in place. Other formats have more (numbers, scales) and are decoded
    as they are read. Keys are stored after rotation. All memory is taken and written once at
    start, so that a lack of it shows then and not in the middle of a request.
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
        kept = layout.format
        # numbers are kept as they are computed, so that attention reads them in place
        self.is_plain = kept.keys == kept.values == Cast(layout.dtype)
        self._place = {
            layer: (group_index, layer_index)
            for group_index, group in enumerate(layout.groups)
            for layer_index, layer in enumerate(group.layers)
        }
        try:
            self._planes = [
                _rooms(layout, group, n_blocks, device)
                for group, n_blocks in zip(layout.groups, pools.group_blocks, strict=True)
            ]
        except (RuntimeError, MemoryError) as error:
            memory_bytes = self.memory_bytes
            reason = f"{memory_bytes} bytes could not be taken on {device}; lower it"
            raise ConfigError("kv_memory_bytes", memory_bytes, reason) from error
        self._kept = {layer: self._views(layer) for layer in self._place}

    @property
    def memory_bytes(self) -> int:
        """Bytes that the blocks of all groups take."""
        sized = enumerate(self.pools.group_blocks)
        return sum(n_blocks * self.block_bytes(group) for group, n_blocks in sized)

    def group_of(self, layer: int) -> int:
        """Return the index of the layer group that holds `layer`."""
        return self._place[layer][0]

    def layer(self, layer: int) -> tuple[Tensor, ...]:
        """Return views of a layer's planes, each [kv_heads, n_slots, width]: keys, then values.

        Writing to them writes to the store.
        """
        group, index = self._place[layer]
        return tuple(plane[index] for plane in self._planes[group])

    def slots(self, slots: Sequence[int] | Tensor) -> Slots:
        """Return any slots as they are written and read. Made once a step, not once a layer."""
        return Slots(slots, self.layout.block_size_tokens, self.device)

    def kept(self, layer: int) -> tuple[Kept, Kept]:
        """Return a layer's keys and values, to be written and read as rows."""
        return self._kept[layer]

    def write(
        self, layer: int, slots: Slots, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write the KV of t positions, and return it as it is read from now on.

        Args:
            layer: the model's layer index.
            slots: t of them, none twice. Before each of them its block has been written up to it,
                by this call or by others.
            keys, values: [kv_heads, t, dim].
        """
        kept_keys, kept_values = self._kept[layer]
        return kept_keys.write_both(kept_values, slots, keys, values)

    def copy_block(self, group: int, source: BlockId, target: BlockId, n_tokens: int) -> None:
        """Copy the first `n_tokens` positions of a block, in every layer of `group`, exactly."""
        size = self.layout.block_size_tokens
        read = slice(source * size, source * size + n_tokens)
        write = slice(target * size, target * size + n_tokens)
        for plane in self._planes[group]:
            plane[:, :, write] = plane[:, :, read]

    def move_blocks(self, group: int, source: Span, target: BlockId, *, swaps: bool) -> None:
        """Copy consecutive blocks to where as many others are, in every layer of `group`, exactly.

        The two share no block. Cost: a copy, and memory for as much where they change places.

        `swaps`: the others come to where these were; else they are written over.
        """
        size = self.layout.block_size_tokens
        n_slots = source.n_blocks * size
        pairs = [
            (plane.narrow(2, source.first * size, n_slots), plane.narrow(2, target * size, n_slots))
            for plane in self._planes[group]
        ]
        kept = [there.clone() for _, there in pairs] if swaps else []
        for here, there in pairs:
            there.copy_(here)
        for (here, _), others in zip(pairs, kept, strict=False):
            here.copy_(others)

    def block_bytes(self, group: int) -> int:
        """Return the bytes that one block of a layer group takes."""
        shape = self.layout.groups[group]
        return shape.bytes_per_token(self.layout.format) * self.layout.block_size_tokens

    def copy_out(self, group: int, span: Span, room: Tensor | None = None) -> Tensor:
        """Copy consecutive blocks of a layer group to the host, in one pass.

        `room`: uint8 [n_blocks, block_bytes] on the host, to write to; None: new memory.

        Returns:
            uint8 [n_blocks, block_bytes]: a block's planes one after another, each of all layers.
            Whoever writes it back with `copy_in` has the same bits in the store.
        """
        if room is None:
            room = torch.empty((span.n_blocks, self.block_bytes(group)), dtype=torch.uint8)
        for plane, data in self._paired(group, span, room):
            data.copy_(plane)
        return room

    def copy_in(self, group: int, span: Span, data: Tensor) -> None:
        """Write to consecutive blocks what `copy_out` has read from as many, in one pass.

        `data`: uint8 [n_blocks, block_bytes], on the host. Its rows may lie apart.
        """
        for plane, part in self._paired(group, span, data):
            plane.copy_(part)

    def _paired(self, group: int, span: Span, data: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield views of blocks in each plane and of their bytes in `data`.

        Both are uint8 [n_blocks, layers, kv_heads, block_size_tokens, bytes of a position].
        """
        size = self.layout.block_size_tokens
        at = 0
        for plane in self._planes[group]:
            blocks = plane.view(torch.uint8).narrow(2, span.first * size, span.n_blocks * size)
            shaped = blocks.view(*plane.shape[:2], span.n_blocks, size, -1).permute(2, 0, 1, 3, 4)
            n_bytes = shaped[0].numel()
            yield shaped, data.narrow(1, at, n_bytes).view(shaped.shape)
            at += n_bytes

    def _views(self, layer: int) -> tuple[Kept, Kept]:
        shape = self.layout.groups[self._place[layer][0]]
        kept, planes = self.layout.format, self.layer(layer)
        n_keys = len(kept.keys.planes(shape.key_dim))
        dtype, size = self.layout.dtype, self.layout.block_size_tokens
        turning = Turning(shape.key_dim, self.device) if kept.turns_keys else None
        return (
            kept.keys_kept(kept.keys, planes[:n_keys], shape.key_dim, dtype, size, turning),
            Kept(kept.values, planes[n_keys:], shape.value_dim, dtype, size),
        )


def _rooms(
    layout: KVLayout, group: LayerGroup, n_blocks: int, device: torch.device
) -> tuple[Tensor, ...]:
    """Return the planes of a group, [layers, kv_heads, n_slots, width], all zero."""
    kept = layout.format
    shape = (len(group.layers), group.kv_heads, n_blocks * layout.block_size_tokens)
    planes = (*kept.keys.planes(group.key_dim), *kept.values.planes(group.value_dim))
    return tuple(
        torch.empty((*shape, each.width), dtype=each.dtype, device=device).fill_(0)
        for each in planes
    )
