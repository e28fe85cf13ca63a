"""Several streams of events read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import cast

from prefixcache.types import Event

NumberedEvent = tuple[int, Event]  # which source, and what it gave


class MergedEvents:
    """The events of all sources as they come; ends when all have ended.

    An error of one source is raised to the reader. At most two events of each source wait here,
    so that a slow reader slows the sources.
    """

    def __init__(self, queue: asyncio.Queue[NumberedEvent | Exception | None], n_open: int) -> None:
        self._queue = queue
        self._n_open = n_open

    def __aiter__(self) -> MergedEvents:
        return self

    async def __anext__(self) -> NumberedEvent:
        while self._n_open:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item is not None:
                return item
            self._n_open -= 1
        raise StopAsyncIteration


@asynccontextmanager
async def merged(
    sources: Sequence[AsyncIterator[Event]],
) -> AsyncIterator[AsyncIterator[NumberedEvent]]:
    """Read `sources` side by side; each is closed when the block ends, however it ends."""
    queue: asyncio.Queue[NumberedEvent | Exception | None] = asyncio.Queue(maxsize=len(sources))
    pumps = [
        asyncio.create_task(_pump(index, source, queue)) for index, source in enumerate(sources)
    ]
    try:
        yield MergedEvents(queue, len(sources))
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(
    index: int,
    source: AsyncIterator[Event],
    queue: asyncio.Queue[NumberedEvent | Exception | None],
) -> None:
    """Move the events of `source` to `queue`, then None, or the error that ended it."""
    try:
        async with closing(source) as events:
            async for event in events:
                await queue.put((index, event))
    except Exception as error:  # a task's edge: the reader of the queue raises it
        await queue.put(error)
    else:
        await queue.put(None)


def closing(source: AsyncIterator[Event]) -> aclosing[AsyncGenerator[Event, None]]:
    """Have `source`, which is a generator, closed when the block ends, however it ends."""
    return aclosing(cast("AsyncGenerator[Event, None]", source))
