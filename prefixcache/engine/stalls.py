"""Notices when requests wait and nothing comes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prefixcache.engine.scheduler import Scheduler
from prefixcache.index import PrefixCache

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 5.0


class StallNotice:
    """Logs, once each time, that nobody runs while somebody waits, and what the first one needs.

    The engine promises progress, so this is a fault of ours. The gateway ends a worker that stays
    like that.
    """

    def __init__(
        self,
        cache: PrefixCache,
        scheduler: Scheduler,
        clock: Callable[[], float],
        *,
        whole_group: int,
    ) -> None:
        """Begin. `whole_group`: the layer group whose pool is told of."""
        self._cache = cache
        self._scheduler = scheduler
        self._clock = clock
        self._whole_group = whole_group
        self._since: float | None = None
        self._is_told = False

    def look(self) -> None:
        """Take note of how things stand after a step."""
        if self._scheduler.running or not self._scheduler.waiting:
            self._since, self._is_told = None, False
            return
        now = self._clock()
        self._since = now if self._since is None else self._since
        if not self._is_told and now - self._since >= _PATIENCE_SECONDS:
            self._is_told = True
            self._tell(now - self._since)

    def _tell(self, seconds: float) -> None:
        waiting, counts = self._scheduler.waiting, self._cache.counts(self._whole_group)
        first = next(iter(waiting))
        logger.error(
            "for %.0f seconds nobody has run while %d wait; the first, request %s, needs %d blocks:"
            " %d are free, %d cached, %d held",
            seconds,
            len(waiting),
            first.request.request_id,
            -(-(first.n_tokens + 1) // self._cache.block_size_tokens),
            counts.free,
            counts.cached,
            counts.held,
        )
