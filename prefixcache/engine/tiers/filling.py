"""Writing what other tiers have into a request's own blocks, when it is admitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import NamedTuple

from prefixcache.engine.index_groups import IndexGroups
from prefixcache.engine.sequence import Sequence
from prefixcache.engine.tiers.pieces import Piece, write_between
from prefixcache.engine.tiers.speeds import TransferSpeed
from prefixcache.errors import PoolExhaustedError
from prefixcache.index import Lease, PrefixCache
from prefixcache.kv import KVStore


@dataclass(slots=True)
class TierHits:
    """What was loaded from one tier; none ever falls."""

    requests: int = 0
    tokens: int = 0


class _Part(NamedTuple):
    """What was loaded of one piece, in positions of the prompt."""

    tier: str
    start_token: int
    stop_token: int


class Filling:
    """Loads whole blocks that follow what a request has matched, and commits them.

    With sliding windows it loads of a window group what the next token sees, its lead included,
    and so as far as all of that is there.
    """

    def __init__(
        self,
        cache: PrefixCache,
        store: KVStore,
        groups: IndexGroups,
        clock: Callable[[], float],
        host_speed: TransferSpeed,
    ) -> None:
        self._cache = cache
        self._store = store
        self._groups = groups
        self._clock = clock
        self._host_speed = host_speed
        self._sees_all = all(group.window is None for group in store.layout.groups)
        self.hits: dict[str, TierHits] = {}

    def fill(self, sequence: Sequence, lease: Lease, pieces: Iterable[Piece]) -> None:
        """Write what `pieces` have, which follow each other and what the lease has stored.

        All but the prompt's last token count as loaded then, and whole blocks of these are
        committed. Without sliding windows each piece is written when it comes, and not kept.
        """
        most = sequence.n_tokens - 1
        if lease.cached_tokens >= most:
            return
        fill = self._fill_in_turn if self._sees_all else self._fill_seen
        parts = fill(lease, pieces, most)
        n_loaded = parts[-1].stop_token if parts else 0
        if n_loaded <= lease.cached_tokens:
            return
        size = self._cache.block_size_tokens
        self._cache.commit(lease, sequence.packed(n_loaded // size * size))
        self._count(sequence, parts)
        self._cache.copies.count_loaded(lease, n_loaded, n_prompt=sequence.n_tokens)

    def _fill_in_turn(self, lease: Lease, pieces: Iterable[Piece], most: int) -> list[_Part]:
        start, parts = lease.stored_blocks, list[_Part]()
        for piece in pieces:
            parts.append(self._part(piece, most))
            self._write(lease, [piece], start, parts[-1].stop_token)
        return parts

    def _fill_seen(self, lease: Lease, pieces: Iterable[Piece], most: int) -> list[_Part]:
        """Write what the next token sees, and nothing where that is not all there."""
        start, known = lease.stored_blocks, list(pieces)
        n_loaded = min(self._reach(known, start, most) * self._cache.block_size_tokens, most)
        if n_loaded <= lease.cached_tokens:
            return []
        try:
            self._cache.copies.skip_to(lease, n_loaded)
        except PoolExhaustedError:
            return []
        self._write(lease, known, start, n_loaded)
        parts = [self._part(piece, n_loaded) for piece in known]
        return [part for part in parts if part.start_token < part.stop_token]

    def _part(self, piece: Piece, most: int) -> _Part:
        size = self._cache.block_size_tokens
        end = (piece.start + piece.n_blocks) * size
        return _Part(piece.tier, piece.start * size, min(end, most))

    def _write(self, lease: Lease, pieces: Several[Piece], start: int, n_loaded: int) -> None:
        extents = self._groups.extents(lease)
        for piece in pieces:
            begin = self._clock()
            n_bytes = 0
            for group, held in enumerate(extents):
                for needed, (first, runs) in zip(
                    self._needed(group, start, n_loaded), held, strict=True
                ):
                    n_written = write_between(
                        [piece], group, needed.start, needed.stop, runs, first
                    )
                    n_bytes += n_written * self._store.block_bytes(group)
            if piece.tier == "host" and n_bytes:
                self._host_speed.record(n_bytes, self._clock() - begin)

    def _needed(self, group: int, start: int, position: int) -> list[range]:
        """Return which blocks from `start` on the token at `position` sees in a group.

        First those of its lead, then the others.
        """
        seen = self._cache.copies.seen(group + self._groups.n_added, position)
        return [range(max(start, part.start), part.stop) for part in seen]

    def _reach(self, pieces: Several[Piece], start: int, most: int) -> int:
        """Return the block up to which all that the token after it sees is there, the last such.

        `most`: the last position that may be that token's.
        Cost: O(1) for each block of the pieces and each group.
        """
        groups = range(len(self._store.layout.groups))
        begins = [_run_begins(pieces, group, start) for group in groups]
        size, stop = self._cache.block_size_tokens, start + len(begins[0])
        while stop > start and not all(
            not needed or begins[group][needed[-1] - start] <= needed[0]
            for group in groups
            for needed in self._needed(group, start, min(stop * size, most))
        ):
            stop -= 1
        return stop

    def _count(self, sequence: Sequence, parts: Several[_Part]) -> None:
        found: dict[str, int] = {}
        for tier, start, stop in parts:
            found[tier] = found.get(tier, 0) + stop - start
        for tier, n_tokens in found.items():
            hits = self.hits.setdefault(tier, TierHits())
            hits.requests += 1
            hits.tokens += n_tokens
        sequence.tier_tokens = found


def _run_begins(pieces: Several[Piece], group: int, start: int) -> list[int]:
    """Return for each block of the pieces, from `start` on, where what is there up to it begins.

    A block that is not there has the one behind it.
    """
    begins: list[int] = []
    begin = start
    for piece in pieces:
        for block in range(piece.start, piece.start + piece.n_blocks):
            if not piece.has(group, block):
                begin = block + 1
            begins.append(begin)
    return begins
