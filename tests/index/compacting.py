"""Compaction as an engine does it: a few pieces at a time, on the stand-in for the KV store."""

from __future__ import annotations

from collections.abc import Iterator

from prefixcache.index import PrefixCache, Reading
from tests.index.fake_kv import FakeKV


class Compacting:
    """Goes on with one layer group after another, whatever happens to the cache meanwhile."""

    def __init__(self, cache: PrefixCache, kv: FakeKV, n_groups: int) -> None:
        self._cache = cache
        self._kv = kv
        self._n_groups = n_groups
        self._rounds: Iterator[int] = iter(())
        self._group = -1

    def go_on(self, n_pieces: int, short_blocks: int, least_hits: int) -> int:
        """Do so many pieces, and return how many blocks moved. The sizes of pools stay the same."""
        groups = range(self._n_groups)
        before = [self._cache.counts(group) for group in groups]
        n_moved = 0
        for _ in range(n_pieces):
            moved = next(self._rounds, None)
            if moved is None:
                self._group = (self._group + 1) % self._n_groups
                self._rounds = self._cache.compaction.rounds(
                    self._kv.exchange,
                    group=self._group,
                    reading=Reading(
                        short_blocks=short_blocks,
                        call_blocks=short_blocks,
                        most_exchanges=4,
                        least_hits=least_hits,
                    ),
                )
            n_moved += moved or 0
        assert before == [self._cache.counts(group) for group in groups]
        return n_moved
