"""A backend that says what a test wrote for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from gateway.backends.local import IDLE_STATS
from prefixcache.types import (
    Delta,
    EngineStats,
    Event,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    GenerationRequest,
    ModelInfo,
    Started,
    Usage,
)

Script = Sequence[str | FinishReason | FailureKind | None]  # texts, then how it ends; None: never


class ScriptedBackend:
    """Plays one script for each request, in the order they come; each text is one token."""

    def __init__(self, folder: Path, scripts: Sequence[Script]) -> None:
        self._folder = folder
        self._scripts = list(scripts)
        self.requests: list[GenerationRequest] = []
        self.n_open = 0
        self.is_ready = True
        self.max_model_tokens = 100
        self.tier_tokens: dict[str, int] = {}  # what each prompt was loaded from
        self.written_tokens = 0  # what each answer says that it left in the cache

    async def start(self) -> ModelInfo:
        return ModelInfo(
            name="scripted",
            folder=str(self._folder),
            vocab_size=1000,
            max_model_tokens=self.max_model_tokens,
            eos_token_ids=(),
            kv_bytes_per_token=0,
            pool_blocks=0,
            block_size_tokens=16,
            dtype="none",
            weights="none",
            device="none",
            load_id="scripted",
        )

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Event]:
        script = self._scripts.pop(0)
        self.requests.append(request)
        self.n_open += 1
        try:
            async for event in _play(request, script, self.written_tokens, self.tier_tokens):
                yield event
        finally:
            self.n_open -= 1

    def stats(self) -> EngineStats:
        return IDLE_STATS

    async def close(self) -> None:
        self.is_ready = False


async def _play(
    request: GenerationRequest, script: Script, n_written: int, tier_tokens: dict[str, int]
) -> AsyncIterator[Event]:
    request_id, n_prompt = request.request_id, len(request.token_ids) // 4
    n_cached = sum(tier_tokens.values())
    if script and isinstance(script[0], FailureKind):
        yield Failed(request_id, script[0], "as the script says")
        return
    yield Started(request_id, n_prompt, n_cached, tier_tokens)
    for n_before, line in enumerate(script):
        await asyncio.sleep(0)
        match line:
            case FinishReason():
                yield Finished(request_id, line, Usage(n_prompt, n_cached, n_before, n_written))
            case FailureKind():
                yield Failed(request_id, line, "as the script says")
            case str():
                yield Delta(request_id, line, (n_before,))
            case None:
                await asyncio.Event().wait()
