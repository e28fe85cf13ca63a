"""All that lies below the device, as the engine uses it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, takewhile

from prefixcache.engine.sequence import Sequence
from prefixcache.engine.tiers.ahead import Fetch, ReadAhead
from prefixcache.engine.tiers.closing import CLOSE_SECONDS, close_lanes
from prefixcache.engine.tiers.filling import Filling
from prefixcache.engine.tiers.keeping import Keeping
from prefixcache.engine.tiers.lane import TierLane
from prefixcache.engine.tiers.naming import Naming, Path
from prefixcache.engine.tiers.pieces import FetchedPiece, HostPiece, Piece
from prefixcache.engine.tiers.speeds import TransferSpeed, Worth
from prefixcache.index import BlockEvent, Lease, Passed, PrefixCache, Published, Scope
from prefixcache.kv import KVStore
from prefixcache.kv.host import HostTier
from prefixcache.tiers import BlockRecord, StoredScope

logger = logging.getLogger(__name__)

RESERVE_SHARE = 16  # of the host's blocks, one in so many is kept free for those who grow


@contextmanager
def _edge(what: str) -> Iterator[None]:
    """Log what goes wrong within, and go on: requests are computed without it."""
    try:
        yield
    except Exception:
        logger.exception("%s failed", what)


def _is_wanted(pair: tuple[BlockRecord, bytes]) -> bool:
    record, key = pair
    return record.key == key


@dataclass(slots=True)
class _Use:
    """What is known of one request."""

    path: Path | None = None
    passage: Passed | None = None  # that the path goes through
    has_looked: bool = False  # whether what it wants was asked for
    next_to_keep: int | None = None  # the first block that is not kept yet; None: none is to be


class Tiers:
    """Loads what left the device, and keeps what is computed.

    Nothing here waits, and nothing fails a request: whatever goes wrong, it is computed.
    """

    def __init__(
        self,
        cache: PrefixCache,
        store: KVStore,
        filling: Filling,
        worth: Worth,
        *,
        host: HostTier | None,
        host_speed: TransferSpeed,
        lanes: Several[TierLane],
        naming: Naming,
        keeping: Keeping,
        ahead: ReadAhead,
        news: threading.Event,
        reads: Callable[[Sequence], bool],
        whole_group: int,
        is_token_exact: bool,
    ) -> None:
        """Put it together; `engine/tiers/opening.py` makes the parts.

        Args:
            news: set whenever a tier's thread has something.
            reads: whether what is cached counts for a request.
            whole_group: a layer group of the index that has all positions.
            is_token_exact: whether a prompt may find a part of a block.
        """
        self._cache, self._store = cache, store
        self._filling, self._worth = filling, worth
        self.host, self.host_speed = host, host_speed
        self.lanes, self._naming, self._keeping, self.ahead = lanes, naming, keeping, ahead
        self._news = news
        self._reads = reads
        self._whole_group = whole_group
        self._is_token_exact = is_token_exact
        self._uses: dict[Sequence, _Use] = {}
        self._size = cache.block_size_tokens
        if lanes:
            cache.subscribe(self)

    @property
    def is_on(self) -> bool:
        """Whether there is any tier."""
        return self.host is not None or bool(self.lanes)

    @property
    def hits(self) -> dict[str, tuple[int, int]]:
        """Requests and tokens that were loaded, by tier."""
        return {name: (hits.requests, hits.tokens) for name, hits in self._filling.hits.items()}

    def begin_step(self) -> None:
        """Have room for what the step gives up. To be called before each step."""
        self._keeping.begin_step()
        with _edge("making room in host memory"):
            self._make_room(0)

    def read_ahead(self, sequence: Sequence) -> None:
        """Begin to read what a request that waits will need."""
        if not self.lanes or sequence.is_behind_twin or not self._reads(sequence):
            return
        use = self._uses.setdefault(sequence, _Use())
        if use.has_looked:
            return
        use.has_looked = True
        with _edge("reading ahead"):
            outlook = self._cache.copies.outlook(
                sequence.namespace, sequence.packed(sequence.n_tokens)
            )
            use.path, use.passage = self._naming.path(sequence, outlook.passage), outlook.passage
            start = max(outlook.n_known, use.path.first_block)
            self.ahead.begin(sequence, use.path, start, self._stop(sequence))

    def is_reading(self, sequence: Sequence, *, is_idle: bool) -> bool:
        """Whether a request had better wait for what is being read.

        `is_idle`: nobody runs. Then one that is read for may be admitted when some of it is there,
        and `fill` waits for the rest.
        """
        if not self.lanes:
            return False
        if sequence not in self._uses:  # it was behind somebody when it came
            self.read_ahead(sequence)
        sequence.awaits_tier = self.ahead.is_reading(sequence, is_idle=is_idle)
        return sequence.awaits_tier

    def pause(self, seconds: float) -> None:
        """Wait until a tier has something, or so long."""
        self._news.wait(seconds)
        self._news.clear()

    def make_way(self, sequence: Sequence) -> None:
        """Have room in the host tier for what is given up when `sequence` is admitted."""
        if self.host is None:
            return
        with _edge("making room in host memory"):
            n_found = 0
            if self._reads(sequence):
                tokens = sequence.packed(sequence.n_tokens)
                outlook = self._cache.copies.outlook(sequence.namespace, tokens)
                n_found = outlook.n_blocks
                for part in outlook.away:
                    self.host.touch(part.handle)
            self._make_room(-(-(sequence.n_tokens + 1) // self._size) - n_found)

    def fill(self, sequence: Sequence, lease: Lease) -> bool:
        """Load what comes next after what a request has matched; `lease` tells how far it got.

        Returns:
            False: something went wrong midway. The lease is to be released, for it may lack what
            the request sees; for another one nothing is loaded, and the rest is computed.
        """
        sequence.tier_tokens, sequence.awaits_tier = {}, False
        if not (self.is_on and self._reads(sequence)):
            return True
        with _edge("loading from a tier"):
            fetch = self.ahead.take(sequence)
            try:
                self._filling.fill(sequence, lease, self._pieces(sequence, lease, fetch))
            finally:
                if fetch is not None and fetch.is_met:
                    fetch.end()
            return True
        sequence.tier_tokens = {}
        return False

    def admit(self, sequence: Sequence, lease: Lease) -> None:
        """Note from where on a request that is admitted has something new to keep."""
        if not (self.lanes and lease.stores):
            return
        with _edge("looking for what is to be kept"):
            path = self._path(sequence, lease)
            use = self._uses[sequence]
            if use.next_to_keep is None:
                start = max(lease.stored_blocks, path.first_block)
                use.next_to_keep = self._first_unkept(path, start)

    def keep(self, sequence: Sequence, lease: Lease) -> None:
        """Keep what a request has committed since the last call."""
        use = self._uses.get(sequence)
        if use is None or use.path is None or use.next_to_keep is None or not lease.stores:
            return
        stop = min(lease.stored_blocks, sequence.n_computed // self._size)
        if stop <= use.next_to_keep:
            return
        start, use.next_to_keep = use.next_to_keep, None  # where keeping fails it ends
        with _edge("keeping what was computed"):
            if stop > use.path.end_block:
                use.path.extend(sequence.packed(stop * self._size))
            use.next_to_keep = self._keeping.keep(lease, use.path, start, stop)

    def leave(self, sequence: Sequence) -> None:
        """Forget a request that has ended."""
        self.ahead.drop(sequence)
        self._uses.pop(sequence, None)

    def invalidate(self, scope: StoredScope) -> None:
        """Have nothing of `scope` found any more in lasting tiers. Does not wait."""
        for lane in self.lanes:
            lane.invalidate(scope)
        for sequence, use in list(self._uses.items()):
            if use.path is None or not scope.holds(use.path.namespace):
                continue
            self.ahead.drop(sequence)
            use.next_to_keep = None  # what runs on is the pool's
            if sequence.lease is None:
                del self._uses[sequence]  # it may be admitted under another name

    def stored(self, event: BlockEvent) -> None:
        """Do nothing: what is to be kept comes with its request."""

    def removed(self, event: BlockEvent) -> None:
        """Do nothing: what left the device may stay elsewhere."""

    def cleared(self, scope: Scope | Published) -> None:
        """Have the tiers follow an invalidation of the index."""
        stored = self._naming.scope(scope)
        if stored is not None:
            self.invalidate(stored)

    def flush(self, seconds: float) -> bool:
        """Wait until what was handed on is written, or so long; return whether it is."""
        end = time.monotonic() + seconds
        return all(lane.flush(max(end - time.monotonic(), 0.0)) for lane in self.lanes)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Write what waits to be written and let the tiers go, in so many seconds at most."""
        close_lanes(self.lanes, seconds)

    def _make_room(self, n_blocks: int) -> None:
        if self.host is None:
            return
        n_free = self._cache.counts(self._whole_group).free
        reserve = self.host.n_blocks // RESERVE_SHARE
        self.host.make_room(max(n_blocks - n_free, 0) + reserve, self._cache.copies.forget)

    def _pieces(self, sequence: Sequence, lease: Lease, fetch: Fetch | None) -> Iterable[Piece]:
        """Return what may be loaded behind what a lease has stored: host first, then what came."""
        pieces: list[Piece] = []
        start = lease.stored_blocks
        last = self._stop(sequence)
        if self.host is not None:
            away = self._cache.copies.away(lease, sequence.packed(last * self._size))
            n_tokens = sum(part.n_blocks for part in away) * self._size
            if n_tokens and self._worth.is_worth(self.host_speed, n_tokens):
                for part in away:
                    handle, first, n_blocks, at = part
                    pieces.append(HostPiece(self.host, self.host.copy(handle), first, at, n_blocks))
                    self.host.touch(handle)
                    start = part.start_block + part.n_blocks
        if fetch is None:
            return pieces
        return chain(pieces, self._fetched(fetch, self._path(sequence, lease), start, last))

    def _stop(self, sequence: Sequence) -> int:
        """Return the block that nothing is loaded from on: a prompt's last token is computed.

        A block that ends with it is loaded where whatever is cached may end midway in a block.
        """
        is_whole = self._is_token_exact and sequence.published is None
        return (sequence.n_tokens - (not is_whole)) // self._size

    def _fetched(self, fetch: Fetch, path: Path, start: int, last: int) -> Iterator[Piece]:
        """Yield what was read ahead and goes on from block `start`, up to `last`."""
        at = fetch.start
        for tier, records in self.ahead.coming(fetch):
            if at <= start < at + len(records):
                wanted = path.keys_between(start, last)  # who shared the reading may go elsewhere
                pairs = zip(records[start - at :], wanted, strict=False)
                some = [record for record, _ in takewhile(_is_wanted, pairs)]
                if some:
                    yield FetchedPiece(self._store, tier, some, start)
                start += len(some)
            at += len(records)
            if start < at:
                return

    def _path(self, sequence: Sequence, lease: Lease) -> Path:
        """Return a request's named blocks, as it was admitted."""
        use, passage = self._uses.setdefault(sequence, _Use()), lease.passage
        if use.path is None or use.passage != passage:
            use.path, use.passage = self._naming.path(sequence, passage), passage
            use.next_to_keep = None
        return use.path

    def _first_unkept(self, path: Path, start: int) -> int:
        """Return the first block before `start` that some tier says it has not, or `start`."""
        keys = path.keys_between(path.first_block, min(start, path.end_block))
        known = (lane.likely_length(keys) for lane in self.lanes if not lane.breaker.is_out)
        return min([start, *(path.first_block + n for n in known if n is not None)])
