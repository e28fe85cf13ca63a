"""A test's own engine behind a gateway: no worker, so that the test has its clock and its pool."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from prefixcache.types import (
    EngineStats,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    ModelInfo,
    RequestId,
)
from tests.support.models import Bench


class InlineBackend:
    """A `Backend` whose engine is stepped by whoever reads its events."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        """Serve `bench`; `folder` has its tokenizer."""
        self.bench = bench
        self._folder = folder
        self._events: defaultdict[RequestId, list[Event]] = defaultdict(list)
        self.is_ready = True

    async def start(self) -> ModelInfo:
        return msgspec.structs.replace(self.bench.engine.info, folder=str(self._folder))

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Event]:
        engine = self.bench.engine
        engine.submit(request)
        try:
            while True:
                for event in self._events.pop(request.request_id, ()):
                    yield event
                    if isinstance(event, Finished | Failed):
                        return
                for event in engine.step():
                    self._events[event.request_id].append(event)
                await asyncio.sleep(0)
        finally:
            engine.cancel(request.request_id)
            self._events.pop(request.request_id, None)

    def stats(self) -> EngineStats:
        return self.bench.engine.stats()

    async def close(self) -> None:
        self.is_ready = False
