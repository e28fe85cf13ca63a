"""What clients ask to be kept outlasts traffic until its time, in the words of each dialect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prefixcache.text import Tokenizer
from tests.support.bodies import CHAT, TEXT
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.inline import InlineBackend
from tests.support.models import Bench
from tests.support.tenancy import HandClock
from tests.support.tokenizers import write_chat_tokenizer

N_BLOCKS, BLOCK_TOKENS = 120, 4
CONTENT = "/v1beta/models/tiny:generateContent"
HALF_HOUR, FIVE_MINUTES = 1800.0, 300.0


@dataclass
class Kept:
    """A gateway over an engine with little room, and the engine's clock."""

    gateway: Gateway
    clock: HandClock

    async def flood(self) -> None:
        """Send as many other prompts as the pool has room for, twice."""
        for number in range(8):
            prompt = [(number * 31 + place * 7) % 200 for place in range(30 * BLOCK_TOKENS)]
            body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, "cache_salt": f"{number}"}
            status, reply = await self.gateway.post(TEXT, body)
            assert status == 200, reply

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        status, reply = await self.gateway.post(path, body)
        assert status == 200, reply
        return reply


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    write_chat_tokenizer(tmp_path)
    clock = HandClock()
    bench = Bench(n_blocks=N_BLOCKS, tokenizer=Tokenizer.load(tmp_path), clock=clock)
    async with running_gateway(InlineBackend(bench.engine, tmp_path)) as gateway:
        yield Kept(gateway, clock)


class OpenAI:
    """prompt_cache_options.ttl of a chat."""

    seconds = HALF_HOUR

    async def ask(self, kept: Kept, text: str, *, is_kept: bool) -> int:
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
        }
        if is_kept:
            body["prompt_cache_options"] = {"mode": "implicit", "ttl": "30m"}
        usage = (await kept.post(CHAT, body))["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])


class Anthropic:
    """cache_control on a block."""

    seconds = FIVE_MINUTES

    async def ask(self, kept: Kept, text: str, *, is_kept: bool) -> int:
        block: dict[str, Any] = {"type": "text", "text": text}
        if is_kept:
            block["cache_control"] = {"type": "ephemeral"}
        messages = [{"role": "user", "content": "one"}]
        body = {"model": MODEL, "max_tokens": 1, "messages": messages, "system": [block]}
        usage = (await kept.post("/v1/messages", body))["usage"]
        assert is_kept is (usage["cache_creation_input_tokens"] > 0)
        return int(usage["cache_read_input_tokens"])


class Gemini:
    """A cached content with a ttl."""

    seconds = 60.0

    async def ask(self, kept: Kept, text: str, *, is_kept: bool) -> int:
        begun = {"systemInstruction": {"parts": [{"text": text}]}}
        if is_kept:
            await kept.post("/v1beta/cachedContents", {"model": MODEL, "ttl": "60s", **begun})
            return 0
        contents = [{"parts": [{"text": "one"}]}]
        body = {"contents": contents, "generationConfig": {"maxOutputTokens": 1}, **begun}
        usage = (await kept.post(CONTENT, body))["usageMetadata"]
        return int(usage["cachedContentTokenCount"])


@pytest.mark.parametrize(
    "dialect", [OpenAI(), Anthropic(), Gemini()], ids=lambda d: type(d).__name__
)
async def test_what_is_to_be_kept_outlasts_traffic(kept: Kept, dialect: Any) -> None:
    """It is found when the pool was filled twice since, unlike its twin, until its time is up."""
    lasting, passing = "alpha hello " * 6, "world beta " * 6
    await dialect.ask(kept, lasting, is_kept=True)
    assert await dialect.ask(kept, passing, is_kept=False) < len(passing)
    whole = await dialect.ask(kept, lasting, is_kept=False)
    assert whole > 4 * BLOCK_TOKENS
    await kept.flood()
    kept.clock.now = dialect.seconds - 1
    n_shared = await dialect.ask(kept, passing, is_kept=False)
    assert n_shared < whole / 2
    assert await dialect.ask(kept, lasting, is_kept=False) >= whole - 2 * BLOCK_TOKENS
    kept.clock.now = dialect.seconds + 1
    await kept.flood()
    assert await dialect.ask(kept, lasting, is_kept=False) < whole / 2
