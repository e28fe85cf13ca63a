"""Several streams read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.merge import merged
from prefixcache.types import Delta, Event, RequestId


class Source:
    """Gives events until told otherwise, and knows whether it was closed."""

    def __init__(self, n_events: int, error: Exception | None = None) -> None:
        self._n_events = n_events
        self._error = error
        self.n_given = 0
        self.is_closed = False

    async def events(self) -> AsyncIterator[Event]:
        try:
            for n in range(self._n_events):
                await asyncio.sleep(0)
                self.n_given += 1
                yield Delta(RequestId("x"), str(n), ())
            if self._error is not None:
                raise self._error
        finally:
            self.is_closed = True


async def test_each_source_keeps_its_order() -> None:
    """All events of all sources come, each source's in its own order."""
    sources = [Source(n) for n in (3, 0, 5)]
    found: dict[int, list[str]] = {}
    async with merged([source.events() for source in sources]) as events:
        async for index, event in events:
            assert isinstance(event, Delta)
            found.setdefault(index, []).append(event.text)
    assert found == {0: list("012"), 2: list("01234")}


async def test_leaving_closes_every_source() -> None:
    """A reader that leaves early leaves no source open and no task behind."""
    before = asyncio.all_tasks()
    sources = [Source(1000) for _ in range(3)]
    async with merged([source.events() for source in sources]) as events:
        await anext(events)
    assert all(source.is_closed for source in sources)
    assert asyncio.all_tasks() == before


async def test_an_error_reaches_the_reader_and_closes_the_rest() -> None:
    """One source's error is raised where the events are read."""
    sources = [Source(1000), Source(2, ValueError("boom"))]
    with pytest.raises(ValueError, match="boom"):  # noqa: PT012
        async with merged([source.events() for source in sources]) as events:
            async for _ in events:
                pass
    assert all(source.is_closed for source in sources)


async def test_a_slow_reader_slows_the_sources() -> None:
    """What waits for a reader is bounded, however much a source has to give."""
    source = Source(10**6)
    async with merged([source.events()]) as events:
        await anext(events)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert source.n_given < 10
