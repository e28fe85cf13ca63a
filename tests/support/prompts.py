"""A published prompt for tests, and the routes that have to do with it."""

from __future__ import annotations

from typing import Any

from tests.support.gateways import MODEL
from tests.support.tenancy import ADMIN, Keyed, bearer

PROMPTS = "/v1/prompts"
SYSTEM = "Answer in one word, and be kind to whoever asks. " * 4
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
}
PROMPT: dict[str, Any] = {"name": "kind", "system": SYSTEM}


def asked(text: str = "hello", system: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a chat's body."""
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return {"model": MODEL, "messages": messages, "max_tokens": 1, **fields}


async def request(
    keyed: Keyed, method: str, path: str, body: object = None, key: str = ADMIN
) -> tuple[int, dict[str, Any]]:
    """Send JSON with a key and return status and JSON."""
    url = keyed.gateway.url + path
    async with keyed.gateway.http.request(method, url, json=body, headers=bearer(key)) as response:
        return response.status, await response.json()


async def publish(keyed: Keyed, **fields: Any) -> dict[str, Any]:
    """Publish a prompt and return its card."""
    status, card = await request(keyed, "POST", PROMPTS, {**PROMPT, **fields})
    assert status == 200, card
    return card


async def cached(keyed: Keyed, key: str, body: dict[str, Any]) -> int:
    """Ask a chat and return how much of its prompt was cached."""
    status, reply = await request(keyed, "POST", "/v1/chat/completions", body, key)
    assert status == 200, reply
    found: int = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def code_of(answer: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    """Return the status and the code of a refusal."""
    status, reply = answer
    return status, reply["error"]["code"]
