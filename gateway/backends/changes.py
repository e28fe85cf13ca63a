"""Changes that the worker was asked for: those it has not answered yet, and those that stand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

from gateway.errors import ChangeRefusedError, NotReadyError
from prefixcache import wire
from prefixcache.control import Publication, TenantQuota

_log = logging.getLogger(__name__)


class PendingChanges:
    """Matches the worker's answers to whoever waits for them."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[wire.Answer]] = {}

    def open(self) -> tuple[int, asyncio.Future[wire.Answer]]:
        """Return the id for a new change, and what will be its answer."""
        change_id = next(self._ids)
        future: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
        self._waiting[change_id] = future
        future.add_done_callback(lambda _: self._waiting.pop(change_id, None))
        return change_id, future

    def open_unawaited(self) -> int:
        """Return the id for a change that nobody waits for; a refusal is logged."""
        change_id, future = self.open()
        future.add_done_callback(_log_refusal)
        return change_id

    def answer(self, message: wire.Answer) -> None:
        """Hand an answer to whoever waits for it; nobody may, any more."""
        future = self._waiting.get(message.change_id)
        if future is None or future.done():
            return
        if isinstance(message, wire.ChangeRefused):
            future.set_exception(ChangeRefusedError(message.message))
        else:
            future.set_result(message)

    def fail(self) -> None:
        """Tell all who wait that the worker is gone."""
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(NotReadyError("the worker died before it made the change"))


class Standing:
    """What holds for every worker to come: it is told so before it gets its first request."""

    def __init__(self) -> None:
        self.quotas: dict[str, TenantQuota] = {}
        self.publications: dict[str, Publication] = {}  # by prompt id, the oldest first
        self._in_progress: set[str] = set()

    @contextmanager
    def publishing(self, publication: Publication) -> Iterator[None]:
        """Have `publication` stand if the block ends well.

        Raises:
            ChangeRefusedError: its id stands, or is about to.
        """
        prompt_id = publication.prompt_id
        if prompt_id in self.publications or prompt_id in self._in_progress:
            raise ChangeRefusedError("this prompt id is in use; each publication has its own")
        self._in_progress.add(prompt_id)
        try:
            yield
            self.publications[prompt_id] = publication
        finally:
            self._in_progress.discard(prompt_id)

    def changes(self) -> Iterator[Callable[[int], wire.Change]]:
        """Yield what makes each change that a new worker is told of, given a change id."""
        if self.quotas:
            yield partial(wire.SetQuotas, quotas=self.quotas)
        for publication in self.publications.values():
            yield partial(wire.Publish, publication=publication, stands=True)


def _log_refusal(future: asyncio.Future[wire.Answer]) -> None:
    if not future.cancelled() and isinstance(error := future.exception(), ChangeRefusedError):
        _log.error("the worker did not take over what stood before: %s", error)
