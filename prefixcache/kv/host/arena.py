"""Room in host memory for blocks of a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from prefixcache.errors import ConfigError
from prefixcache.index.blocks import BlockPool
from prefixcache.index.spans import Runs, cut, n_blocks_in
from prefixcache.kv.store import KVStore
from prefixcache.types import Span


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Consecutive blocks of one path. A group has those of its last positions, or all of them."""

    n_blocks: int
    parts: tuple[Runs, ...]  # by layer group, in the arena

    def first_of(self, group: int) -> int:
        """Return the first of the blocks that a group has; `n_blocks`: none of them."""
        return self.n_blocks - n_blocks_in(self.parts[group])


class HostArena:
    """As many bytes as are asked for, shared out to the layer groups as the store shares its own.

    All memory is taken at once, and pinned where the store is on a GPU. Blocks lie in it as
    `KVStore.copy_out` gives them.
    """

    def __init__(self, store: KVStore, memory_bytes: int) -> None:
        """Take the memory.

        Raises:
            ConfigError: it holds no block, or cannot be had.
        """
        share = memory_bytes / store.memory_bytes
        n_blocks = [int(n * share) for n in store.pools.group_blocks]
        if min(n_blocks) < 1:
            least = -(-store.memory_bytes // min(store.pools.group_blocks))
            reason = f"holds no block; it takes {least} bytes, or 0 for none"
            raise ConfigError("host_memory_bytes", memory_bytes, reason)
        self._store = store
        self._pools = [BlockPool(n) for n in n_blocks]
        is_pinned = store.device.type == "cuda"
        try:
            self._rooms = [
                torch.zeros((n, store.block_bytes(g)), dtype=torch.uint8, pin_memory=is_pinned)
                for g, n in enumerate(n_blocks)
            ]
        except (RuntimeError, MemoryError) as error:
            reason = "so much host memory could not be taken; lower it"
            raise ConfigError("host_memory_bytes", memory_bytes, reason) from error

    @property
    def n_groups(self) -> int:
        """Layer groups of the store."""
        return len(self._pools)

    @property
    def memory_bytes(self) -> int:
        """Bytes that were taken."""
        return sum(room.numel() for room in self._rooms)

    @property
    def used_bytes(self) -> int:
        """Bytes of the copies that are there."""
        pools = enumerate(self._pools)
        return sum((p.n_blocks - p.n_free) * self._store.block_bytes(g) for g, p in pools)

    def n_free(self, group: int) -> int:
        """Return how many blocks of a layer group have room."""
        return self._pools[group].n_free

    def n_blocks(self, group: int) -> int:
        """Return how many blocks of a layer group have room when nothing is there."""
        return self._pools[group].n_blocks

    def put(self, n_blocks: int, runs: Sequence[Runs]) -> HostCopy | None:
        """Copy blocks out of the store; None: a group that has all of them has too little room.

        Args:
            n_blocks: consecutive blocks of a path.
            runs: by layer group, its blocks of the last positions of these; a group that has but
                some of them is left out where its room is too small.
        """
        parts: list[Runs] = []
        for group, device in enumerate(runs):
            n_here = n_blocks_in(device)
            has_room = n_here <= self._pools[group].n_free
            if not has_room and n_here == n_blocks:
                self._free(parts)
                return None
            here = self._pools[group].allocate(n_here) if has_room else ()
            parts.append(here)
            for source, target in paired(device, here):
                self._store.copy_out(group, source, self._view(group, target))
        return HostCopy(n_blocks, tuple(parts))

    def load(self, copy: HostCopy, group: int, first: int, runs: Runs) -> int:
        """Write blocks of a copy from its block `first` on to `runs` of the store.

        `first`: one that the group has. Returns the bytes that were written.
        """
        here = cut(copy.parts[group], first - copy.first_of(group))[1]
        for source, target in paired(here, runs):
            self._store.copy_in(group, target, self._view(group, source))
        return n_blocks_in(runs) * self._store.block_bytes(group)

    def free(self, copy: HostCopy) -> None:
        """Take back a copy's room."""
        self._free(copy.parts)

    def bytes_of(self, copy: HostCopy) -> int:
        """Return the bytes that a copy takes."""
        parts = enumerate(copy.parts)
        return sum(n_blocks_in(runs) * self._store.block_bytes(group) for group, runs in parts)

    def _free(self, parts: Sequence[Runs]) -> None:
        for group, runs in enumerate(parts):
            for span in runs:
                self._pools[group].free(span)

    def _view(self, group: int, span: Span) -> torch.Tensor:
        return self._rooms[group][span.first : span.first + span.n_blocks]


def paired(left: Runs, right: Runs) -> Iterator[tuple[Span, Span]]:
    """Yield spans of equal length that lie in step in both runs, as far as both go."""
    while left and right:
        n_blocks = min(left[0].n_blocks, right[0].n_blocks)
        one, left = cut(left, n_blocks)
        other, right = cut(right, n_blocks)
        yield one[0], other[0]
