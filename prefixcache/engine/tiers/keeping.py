"""Copying what requests have computed to lasting tiers, behind their backs."""

from __future__ import annotations

from collections.abc import Sequence as Several

from prefixcache.engine.index_groups import IndexGroups
from prefixcache.engine.tiers.lane import TierLane
from prefixcache.engine.tiers.naming import Path
from prefixcache.index import Lease, Packed
from prefixcache.index.spans import Runs, cut
from prefixcache.kv import KVStore
from prefixcache.tiers import BlockRecord

MOST_BYTES_A_STEP = 256 * 2**20  # that are copied out


class Keeping:
    """Makes records of blocks that the tree has, and hands them to all tiers.

    The copy is made at once, for the block may be anybody's by the next step; the rest is the
    tiers' threads' work.
    """

    def __init__(self, store: KVStore, groups: IndexGroups, lanes: Several[TierLane]) -> None:
        self._store = store
        self._groups = groups
        self._lanes = lanes
        self._bytes_left = MOST_BYTES_A_STEP
        n_groups = range(len(store.layout.groups))
        self._block_bytes = sum(store.block_bytes(group) for group in n_groups)

    def begin_step(self) -> None:
        """Have as much to copy as a step may."""
        self._bytes_left = MOST_BYTES_A_STEP

    def keep(self, lease: Lease, path: Path, start: int, stop: int) -> int:
        """Hand on blocks `start` to `stop` - 1 of a request, as many as may be; return the end."""
        stop = min(stop, start + self._bytes_left // self._block_bytes)
        if start >= stop or all(lane.breaker.is_out for lane in self._lanes):
            return max(start, stop)
        self._bytes_left -= (stop - start) * self._block_bytes
        parts = [
            self._parts(group, extents, start, stop)
            for group, extents in enumerate(self._groups.extents(lease))
        ]
        records = []
        for block, own in zip(range(start, stop), zip(*parts, strict=True), strict=True):
            key, parent_key, token_ids, namespace = path.wanted(block)
            records.append(BlockRecord(key, parent_key, namespace, token_ids, own))
        for lane in self._lanes:
            lane.write(records)
        return stop

    def _parts(
        self, group: int, extents: Several[tuple[int, Runs]], start: int, stop: int
    ) -> list[Packed | None]:
        """Return one group's KV of each block; None where a window has passed it.

        `extents`: what there is of it, each with the block that it begins with.
        """
        found: list[Packed | None] = []
        for first, runs in extents:
            at = start + len(found)
            found += [None] * max(min(first, stop) - at, 0)
            begin = max(at, first)
            for span in cut(cut(runs, max(stop - first, 0))[0], begin - first)[1]:
                rows = self._store.copy_out(group, span).numpy()
                found += [memoryview(row) for row in rows]
        return found
