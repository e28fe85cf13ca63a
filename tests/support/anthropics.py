"""Bodies of the Anthropic routes, the official client, and streams put together."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from anthropic import AsyncAnthropic

from tests.support.gateways import MODEL, Gateway

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
BODY: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "one two"}],
}
EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
SMALL = (  # a template that shows tools first, and calls and results in Hermes' form
    "{% if tools %}<tools>{{ tools | tojson }}</tools><tool_call>{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% if m.role == 'tool' %}{{ ' of ' + m.name }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function | tojson) }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@asynccontextmanager
async def anthropic_client(gateway: Gateway) -> AsyncIterator[AsyncAnthropic]:
    """Yield the official client, which is closed afterwards."""
    async with AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        yield client


def use_template(folder: Path, template: str = SMALL) -> None:
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


async def events(gateway: Gateway, body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Post a body that streams and return its events with their names."""
    url = gateway.url + MESSAGES
    async with gateway.http.post(url, json=body | {"stream": True}) as response:
        assert response.status == 200, await response.text()
        frames = (await response.text()).split("\n\n")
    assert frames.pop() == ""
    found = []
    for frame in frames:
        name, data = frame.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(name == data["type"] for name, data in found)
    return found
