"""Changes that the worker was asked for and has not answered yet."""

from __future__ import annotations

import asyncio
from itertools import count

from gateway.errors import ChangeRefusedError, NotReadyError
from prefixcache import wire
from prefixcache.types import ModelInfo


class PendingChanges:
    """Matches the worker's answers to whoever waits for them."""

    def __init__(self) -> None:
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[ModelInfo]] = {}

    def open(self) -> tuple[int, asyncio.Future[ModelInfo]]:
        """Return the id for a new change, and what will be its answer."""
        change_id = next(self._ids)
        future = self._waiting[change_id] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: self._waiting.pop(change_id, None))
        return change_id, future

    def answer(self, message: wire.Changed | wire.ChangeRefused) -> None:
        """Hand an answer to whoever waits for it; nobody may, any more."""
        future = self._waiting.get(message.change_id)
        if future is None or future.done():
            return
        if isinstance(message, wire.Changed):
            future.set_result(message.model)
        else:
            future.set_exception(ChangeRefusedError(message.message))

    def fail(self) -> None:
        """Tell all who wait that the worker is gone."""
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(NotReadyError("the worker died before it made the change"))
