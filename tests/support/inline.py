"""An engine of the test's own process behind a gateway: its clock, its pool, no worker to start."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from prefixcache.config import EngineConfig
from prefixcache.engine import Engine
from prefixcache.types import (
    EngineStats,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    ModelInfo,
    RequestId,
)


class InlineBackend:
    """A `Backend` whose engine is stepped by whoever reads its events."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        """Serve what `engine` does; `folder` has its tokenizer."""
        self._engine = engine
        self._folder = folder
        self._events: defaultdict[RequestId, list[Event]] = defaultdict(list)
        self.is_ready = True

    @classmethod
    def load(cls, folder: Path, kv_memory_bytes: int, **adapters: str) -> InlineBackend:
        """Serve the model in `folder`, and adapters by name, loaded as a worker loads them."""
        config = EngineConfig(
            model=str(folder),
            kv_memory_bytes=kv_memory_bytes,
            threads=1,
            weights="float32",
            adapters=adapters,
        )
        return cls(Engine.load(config, env=os.environ, report=lambda _: None), folder)

    async def start(self) -> ModelInfo:
        return msgspec.structs.replace(self._engine.info, folder=str(self._folder))

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Event]:
        engine = self._engine
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
        return self._engine.stats()

    async def close(self) -> None:
        self.is_ready = False
