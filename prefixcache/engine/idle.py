"""What an engine does while nobody asks for anything."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from prefixcache.config import EngineConfig
from prefixcache.engine.counters import Counters
from prefixcache.engine.index_groups import IndexGroups
from prefixcache.engine.parts import COPIED_TOKENS
from prefixcache.index import BlockExchange, PrefixCache, Reading
from prefixcache.kv import KVStore
from prefixcache.types import Span

logger = logging.getLogger(__name__)

SLICE_SECONDS = 0.005  # of an idle step: who comes then waits no longer, but for a last piece
# As measured: prefixcache/design/0038-fragmentation.md
PAYS_AFTER_STEPS = 16  # decode steps that read what is moved
CALL_TOKENS = 1280  # to read a run in place costs a decode step as much as to copy so many
EXCHANGES_A_BLOCK = 2  # cost as much as copying a block in that many steps
_LONGEST_LOOK_SECONDS = 60.0


class Idle:
    """Compacts the KV pool after requests, slice by slice, and says when to look again.

    What requests have come back to is moved where answers are long enough to pay for it, and what
    they have not where they come back often enough: both as they did so far. It pays only where
    attention reads long runs in place, so numbers must be kept as they are computed.
    """

    def __init__(
        self,
        cache: PrefixCache,
        store: KVStore,
        groups: IndexGroups,
        config: EngineConfig,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._store = store
        self._groups = groups
        self._config = config
        self._counters = counters
        self._clock = clock
        self._compacts = config.compaction == "auto" and config.prefix_cache and store.is_plain
        self._rounds: Iterator[int] | None = None  # None: nothing has been looked at yet
        self._is_due = False

    @property
    def seconds_to_next_look(self) -> float | None:
        """How long an idle engine may wait for its next step, in seconds; None: for ever.

        A quarter of the time after which unused prefixes go, so that they go about then.
        """
        if self._is_due:
            return 0.0
        if self._config.eviction_policy != "ttl":
            return None
        return min(self._config.idle_ttl_seconds / 4, _LONGEST_LOOK_SECONDS)

    def note_work(self) -> None:
        """Note that requests are there: what is cached will have changed when they have ended."""
        self._rounds, self._is_due = None, self._compacts

    def work(self) -> None:
        """Go on with what is to be done, for a slice. What fails is logged, and left."""
        end = self._clock() + SLICE_SECONDS
        try:
            while self._is_due:
                self._go_on()
                if self._clock() >= end:
                    return
        except Exception:  # the edge: nobody has asked for it
            logger.exception("the pool could not be compacted")
            self._rounds, self._is_due = None, False

    def _go_on(self) -> None:
        """Do one piece, which may be the last."""
        if self._rounds is None:
            self._rounds = self._compacting()
        if next(self._rounds, None) is None:
            self._rounds, self._is_due = None, False

    def _compacting(self) -> Iterator[int]:
        counters = self._counters
        decode_steps = counters.output_tokens - counters.accepted_tokens
        if decode_steps < PAYS_AFTER_STEPS * counters.requests:
            return
        reads = counters.cached_tokens / max(counters.computed_tokens, 1)  # of each stored token
        pays_unread = decode_steps * reads >= PAYS_AFTER_STEPS * counters.requests
        size = self._config.block_size_tokens
        reading = Reading(
            short_blocks=COPIED_TOKENS // size,
            call_blocks=CALL_TOKENS // size,
            most_exchanges=EXCHANGES_A_BLOCK,
            least_hits=0 if pays_unread else 1,
        )
        for group in self._groups.of_store():
            yield from self._cache.compaction.rounds(self._exchange, group=group, reading=reading)

    def _exchange(self, order: BlockExchange) -> None:
        group = order.group - self._groups.n_added
        source = Span(order.source, order.n_blocks)
        self._store.move_blocks(group, source, order.target, swaps=not order.is_copy)
