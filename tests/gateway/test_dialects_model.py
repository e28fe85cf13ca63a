"""The official Anthropic and Google clients against engines with a model: hits, calls, streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.backends.local import LocalBackend
from prefixcache.config import EngineConfig
from tests.gateway.test_gemini import google_client
from tests.support.anthropics import anthropic_client
from tests.support.gateways import MODEL, Gateway, running_gateway

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

SYSTEM = "You are the help desk of a small library. Answer in one short sentence. " * 8
ASK: Any = [{"role": "user", "content": "When do you open?"}]
ROOM = 220  # tokens: no call of TOOL is longer, white space and all
GREEDY = {"temperature": 0}  # the client's own methods do not have it any more
TOOL: Any = {
    "name": "opening_hours",
    "description": "Opening hours of one day",
    "input_schema": {
        "type": "object",
        "properties": {"day": {"enum": ["Monday", "Sunday"]}},
        "required": ["day"],
        "additionalProperties": False,
    },
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(default_model: Path) -> AsyncIterator[Gateway]:
    config = EngineConfig(model=str(default_model), kv_memory_bytes=1 << 28)
    async with running_gateway(LocalBackend(config)) as running:
        yield running


async def test_messages_hit_what_was_marked(gateway: Gateway) -> None:
    """The second call reads what the first one wrote; streamed and whole answers are the same."""
    system: Any = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    fields: Any = {"model": MODEL, "max_tokens": 12, "system": system, "extra_body": GREEDY}
    async with anthropic_client(gateway) as client:
        cold = await client.messages.create(messages=ASK, **fields)
        async with client.messages.stream(messages=ASK, **fields) as stream:
            warm = await stream.get_final_message()
        counted = await client.messages.count_tokens(model=MODEL, system=system, messages=ASK)
    texts = [[getattr(block, "text", None) for block in m.content] for m in (cold, warm)]
    assert texts[0] == texts[1] != [None]
    assert cold.stop_reason == warm.stop_reason
    n_written = cold.usage.cache_creation_input_tokens
    assert n_written is not None
    assert n_written > 100
    assert (warm.usage.cache_read_input_tokens or 0) >= n_written
    for usage in (cold.usage, warm.usage):
        read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
        assert usage.input_tokens + (read or 0) + (written or 0) == counted.input_tokens


async def test_a_prefilled_answer_goes_on(gateway: Gateway) -> None:
    """The words that the answer begins with are its own beginning, not another turn."""
    turns: Any = [*ASK, {"role": "assistant", "content": "We open at nine on"}]
    async with anthropic_client(gateway) as client:
        reply = await client.messages.create(
            model=MODEL, max_tokens=8, messages=turns, extra_body=GREEDY
        )
    (block,) = reply.content
    assert block.type == "text"
    assert block.text.startswith(" ")


async def test_a_tool_is_called(gateway: Gateway) -> None:
    """tool_choice any gives a call with arguments of the schema, in a stream as well."""
    fields: Any = {
        "tools": [TOOL],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    }
    async with (
        anthropic_client(gateway) as client,
        client.messages.stream(model=MODEL, max_tokens=ROOM, messages=ASK, **fields) as stream,
    ):
        reply = await stream.get_final_message()
    assert reply.stop_reason == "tool_use"
    call = reply.content[0]
    assert call.type == "tool_use"
    assert call.input["day"] in ("Monday", "Sunday")


async def test_a_cached_content_is_hit(gateway: Gateway) -> None:
    """What was read in for a cached content is not computed again for a question about it."""
    async with google_client(gateway) as client:
        made = await client.caches.create(
            model=MODEL, config={"system_instruction": SYSTEM + "Be kind.", "ttl": "60s"}
        )
        reply = await client.models.generate_content(
            model=MODEL,
            contents="When do you open?",
            config={"cached_content": made.name, "max_output_tokens": 8, "temperature": 0},
        )
    assert reply.text
    n_kept = made.usage_metadata.total_token_count
    assert reply.usage_metadata.cached_content_token_count >= n_kept - 16
