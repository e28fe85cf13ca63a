"""The example of a chat in a web page, in front of a gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from examples.chat_web.app import SYSTEM, conversation, make_app
from gateway.backends.echo import EchoBackend
from tests.support.gateways import running_gateway
from tests.support.tokenizers import write_chat_tokenizer


async def test_a_second_turn_finds_the_first_one_cached(tmp_path: Path) -> None:
    """The application keeps the conversation's beginning as it was, so that it is found again."""
    write_chat_tokenizer(tmp_path)
    backend = EchoBackend(tmp_path, max_model_tokens=8192)
    async with (
        running_gateway(backend) as gateway,
        TestClient(TestServer(make_app(gateway.url, "none", "none"))) as client,
    ):
        asked = [{"role": "user", "content": "Hello"}]
        reply = await client.post("/chat", json=asked)
        first: Any = await reply.json()
        asked += [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "When?"}]
        reply = await client.post("/chat", json=asked)
        second: Any = await reply.json()
        refused = await client.post("/chat", json=[{"role": "system", "content": "x"}])
        page = await client.get("/")
        assert "Bakery" in await page.text()
    assert first["content"]
    assert second["cached_tokens"] >= len(SYSTEM) // 8
    assert second["cached_tokens"] < second["prompt_tokens"]
    assert refused.status == 400


def test_only_role_and_content_are_passed_on() -> None:
    """What else a page sends stays behind."""
    sent = [{"role": "user", "content": "Hello", "name": "x"}]
    assert conversation(sent) == [{"role": "user", "content": "Hello"}]
