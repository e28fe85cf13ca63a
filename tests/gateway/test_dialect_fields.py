"""Whatever the fields of the Anthropic and Gemini routes hold, no answer is our fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.backends.echo import EchoBackend
from tests.gateway.test_cached_contents import CREATE, PATH
from tests.gateway.test_fields import ODD_VALUES
from tests.gateway.test_gemini import BODY as CONTENTS
from tests.gateway.test_gemini import COUNT as COUNT_CONTENTS
from tests.gateway.test_gemini import GENERATE
from tests.support.anthropics import BODY, COUNT, MESSAGES
from tests.support.gateways import Gateway, running_gateway
from tests.support.tokenizers import write_chat_tokenizer

ANTHROPIC_FIELDS = (
    "model", "messages", "max_tokens", "system", "tools", "tool_choice", "stop_sequences",
    "temperature", "top_p", "top_k", "metadata", "thinking", "stream", "service_tier",
    "cache_control", "diagnostics", "container", "mcp_servers", "output_config", "cache_salt",
    "unknown_field",
)  # fmt: skip
GEMINI_FIELDS = (
    "contents", "systemInstruction", "tools", "toolConfig", "safetySettings", "cachedContent",
    "cacheSalt", "model", "unknownField", "generateContentRequest", "displayName", "ttl",
    "expireTime",
)  # fmt: skip
CONFIG_FIELDS = (
    "candidateCount", "maxOutputTokens", "temperature", "topP", "topK", "seed", "stopSequences",
    "presencePenalty", "frequencyPenalty", "responseLogprobs", "logprobs", "responseMimeType",
    "responseSchema", "responseJsonSchema", "responseModalities", "speechConfig", "thinkingConfig",
)  # fmt: skip
PARTS = ("text", "thought", "functionCall", "functionResponse", "inlineData", "fileData")
BLOCKS = ("type", "text", "id", "name", "input", "tool_use_id", "content", "cache_control")

SHORT = b'{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"%b"}]}'
DEEP = (
    b'{"contents":[{"parts":[{"text":"a"}]}],"tools":[{"functionDeclarations":[{"name":"f",'
    b'"parameters":' + b'{"items":' * 900 + b"{}" + b"}" * 900 + b"}]}]}"
)


async def try_all(gateway: Gateway, path: str, bodies: list[Any]) -> None:
    for body in bodies:
        async with gateway.http.post(gateway.url + path, json=body) as reply:
            assert reply.status < 500, (path, body, await reply.text())
            if reply.status != 200:
                assert (await reply.json())["error"]["message"]


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_no_value_of_an_anthropic_field_is_our_fault(gateway: Gateway, path: str) -> None:
    """Each field, and each field of a block, with every odd value: 200 or a 4xx that says why."""
    bodies = [BODY | {name: value} for name in ANTHROPIC_FIELDS for value in ODD_VALUES]
    for role in ("user", "assistant"):
        for kind in ("text", "tool_use", "tool_result", "thinking"):
            block = {"type": kind, "text": "a", "id": "b", "name": "c", "tool_use_id": "b"}
            bodies += [
                BODY | {"messages": [{"role": role, "content": [block | {name: value}]}]}
                for name in BLOCKS
                for value in ODD_VALUES
            ]
    await try_all(gateway, path, bodies)


@pytest.mark.parametrize("path", [GENERATE, COUNT_CONTENTS])
async def test_no_value_of_a_gemini_field_is_our_fault(gateway: Gateway, path: str) -> None:
    """Each field, each part and each setting with every odd value: 200 or a 4xx that says why."""
    bodies = [CONTENTS | {name: value} for name in GEMINI_FIELDS for value in ODD_VALUES]
    bodies += [
        CONTENTS | {"generationConfig": {"responseMimeType": "application/json", name: value}}
        for name in CONFIG_FIELDS
        for value in ODD_VALUES
    ]
    bodies += [
        {"contents": [{"role": role, "parts": [{name: value}]}]}
        for role in ("user", "model")
        for name in PARTS
        for value in ODD_VALUES
    ]
    await try_all(gateway, path, bodies)


async def test_no_value_of_a_cached_content_is_our_fault(tmp_path: Path) -> None:
    """The same for what is to be kept."""
    write_chat_tokenizer(tmp_path)
    async with running_gateway(EchoBackend(tmp_path), max_cached_contents=10_000) as gateway:
        bodies = [CREATE | {name: value} for name in GEMINI_FIELDS for value in ODD_VALUES]
        await try_all(gateway, PATH, bodies)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (MESSAGES, SHORT % b"\\ud83d"),
        (MESSAGES, SHORT % b"\xff"),
        (GENERATE, b'{"contents":[{"parts":[{"text":"\\ud83d"}]}]}'),
        (GENERATE, b'{"contents":[{"parts":[{"text":"\xff"}]}]}'),
        (GENERATE, b'{"contents":' + b"[" * 5000 + b"]" * 5000 + b"}"),
        (MESSAGES, b'{"system":' + b"[" * 5000 + b"]" * 5000 + b"}"),
        (GENERATE, DEEP),
        (GENERATE, b"[]"),
        (MESSAGES, b""),
    ],
)  # fmt: skip
async def test_what_is_no_good_json_is_refused(gateway: Gateway, path: str, body: bytes) -> None:
    """Half characters, bytes that are no text, and deep nesting are a 400."""
    headers = {"Content-Type": "application/json"}
    async with gateway.http.post(gateway.url + path, data=body, headers=headers) as reply:
        assert reply.status == 400, await reply.text()
        assert (await reply.json())["error"]["message"]
