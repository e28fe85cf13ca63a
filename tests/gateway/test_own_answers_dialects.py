"""The official Anthropic and Google clients: an answer that comes back is found in the cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types

from tests.support.gateways import MODEL
from tests.support.inline import InlineBackend
from tests.support.models import write_tiny_model
from tests.support.tenancy import ACME, BETA, Keyed, keyed_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {"type": "string", "pattern": "^ (hello|world|one|two){12,14}$"}
BLOCK_TOKENS = 16  # only whole blocks are cached
N_ASKED = 8  # at least one answer is in tokens that a tokenizer would not choose


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Keyed]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    async with keyed_gateway(InlineBackend.load(folder, 8 << 20)) as running:
        yield running


def blocks(n_prompt: int, n_output: int) -> int:
    """Return how many tokens a request leaves in the cache; the last was never fed."""
    return (n_prompt + n_output - 1) // BLOCK_TOKENS * BLOCK_TOKENS


class Anthropic:
    """Asks in Anthropic's dialect, and tells (prompt, cached, output) of each answer."""

    def __init__(self, keyed: Keyed, key: str) -> None:
        self.client = AsyncAnthropic(base_url=keyed.gateway.url, api_key=key, max_retries=0)

    async def close(self) -> None:
        await self.client.close()

    async def say(self, messages: list[Any], max_tokens: int, *, streamed: bool = False) -> Any:
        fields: Any = {"model": MODEL, "max_tokens": max_tokens, "messages": messages}
        wanted = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
        if streamed:
            async with self.client.messages.stream(**fields, extra_body=wanted) as stream:
                return await stream.get_final_message()
        return await self.client.messages.create(**fields, extra_body=wanted)

    async def turns(self, other: Anthropic, words: str, *, streamed: bool) -> tuple[Any, ...]:
        ask = {"role": "user", "content": words}
        first = await self.say([ask], 400, streamed=streamed)
        messages: Any = [ask, {"role": "assistant", "content": first.content}, ask]
        counted = await self.client.messages.count_tokens(model=MODEL, messages=messages)
        second = await self.say(messages, 1)
        others = await other.say(messages, 1)
        sums = [self.sums(each.usage) for each in (first, second, others)]
        assert sums[1][0] == counted.input_tokens, "counting knows the answer as well"
        return tuple(sums)

    @staticmethod
    def sums(usage: Any) -> tuple[int, int, int]:
        cached = usage.cache_read_input_tokens
        written = usage.cache_creation_input_tokens
        return usage.input_tokens + cached + written, cached, usage.output_tokens


class Google:
    """Asks in Gemini's dialect, by the client's own chats, which keep the history."""

    def __init__(self, keyed: Keyed, key: str) -> None:
        options = types.HttpOptions(base_url=keyed.gateway.url)
        self.whole = genai.Client(api_key=key, http_options=options)
        self.client = self.whole.aio

    async def close(self) -> None:
        await self.client.aclose()
        self.whole.close()

    async def turns(self, other: Google, words: str, *, streamed: bool) -> tuple[Any, ...]:
        json_type = "application/json"
        bound: Any = {"response_mime_type": json_type, "response_json_schema": SCHEMA}
        one: Any = {"max_output_tokens": 1}
        chat = self.client.chats.create(model=MODEL, config=bound)
        if streamed:
            async for piece in await chat.send_message_stream(words):
                first = piece
        else:
            first = await chat.send_message(words)
        history = chat.get_history(curated=True)
        asked: Any = [*history, {"role": "user", "parts": [{"text": words}]}]
        second = await chat.send_message(words, config=one)
        others = await other.client.models.generate_content(model=MODEL, contents=asked, config=one)
        counted = await self.client.models.count_tokens(model=MODEL, contents=asked)
        sums = [self.sums(each.usage_metadata) for each in (first, second, others)]
        assert sums[1][0] == counted.total_tokens, "counting knows the answer as well"
        return tuple(sums)

    @staticmethod
    def sums(usage: Any) -> tuple[int, int, int]:
        cached = usage.cached_content_token_count or 0
        return usage.prompt_token_count, cached, usage.candidates_token_count


@asynccontextmanager
async def two(keyed: Keyed, kind: Any) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the same client with two tenants' keys."""
    mine, other = kind(keyed, ACME), kind(keyed, BETA)
    try:
        yield mine, other
    finally:
        await mine.close()
        await other.close()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", [Anthropic, Google])
async def test_the_second_turn_hits_all_of_the_first_answer(
    keyed: Keyed, kind: Any, streamed: bool
) -> None:
    """Whatever tokens it came in; for another tenant the same words are a tokenizer's."""
    rounds = []
    async with two(keyed, kind) as (mine, other):
        for n in range(N_ASKED):
            words = f"{n}{streamed}{kind.__name__}"  # differ early
            rounds.append(await mine.turns(other, words, streamed=streamed))
    for first, second, _ in rounds:
        assert second[1] >= blocks(first[0], first[2])
    for first, _, others in rounds:
        assert others[1] < first[0], "of another tenant's nothing, of its own earlier turns a start"
    assert any(second[0] != others[0] for _, second, others in rounds), "in tokens of its own"
