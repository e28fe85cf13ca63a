"""Small bodies of the OpenAI routes, and what a refusal looks like."""

from __future__ import annotations

from typing import Any

from tests.support.gateways import MODEL

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CHAT_BODY: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "one two"}],
    "max_tokens": 4,
}
TEXT_BODY: dict[str, Any] = {"model": MODEL, "prompt": "one two", "max_tokens": 4}


def error_of(reply: dict[str, Any]) -> dict[str, Any]:
    """Return the error of a reply, which has all that clients look for."""
    error: dict[str, Any] = reply["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error
