"""One streamed completion, timed from the client's side."""

from __future__ import annotations

import time
from dataclasses import dataclass

import aiohttp
import msgspec

from gateway.errors import GatewayError


class BenchError(GatewayError):
    """A server that is measured gave no usable answer; the text says what it gave."""


@dataclass(frozen=True, slots=True)
class Timed:
    """What one request took and what the server says it used."""

    first_token_seconds: float
    prompt_tokens: int
    cached_tokens: int


async def timed_completion(
    session: aiohttp.ClientSession, url: str, *, model: str, prompt: str, max_tokens: int
) -> Timed:
    """Send a greedy streamed completion and time its first text.

    Raises:
        BenchError: the answer is no stream, holds no text or no usage.
    """
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begin = time.perf_counter()
    first: float | None = None
    usage: dict[str, object] | None = None
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise BenchError(f"{url} answered {response.status}: {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = msgspec.json.decode(line[6:])
            if first is None and any(choice.get("text") for choice in event["choices"]):
                first = time.perf_counter() - begin
            usage = event.get("usage") or usage
    if first is None or usage is None:
        raise BenchError(f"{url} sent no text or no usage; is it an OpenAI-compatible server?")
    return Timed(first, *_tokens(usage))


def _tokens(usage: dict[str, object]) -> tuple[int, int]:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    prompt = usage.get("prompt_tokens")
    if not isinstance(prompt, int) or not isinstance(cached, int):
        raise BenchError("the server's usage has no prompt_tokens or no cached_tokens")
    return prompt, cached
