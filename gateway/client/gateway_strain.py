"""A gateway under strain: many streams that stay open, and very large prompts beside small ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psutil

from gateway.client.gateway_cost import Setting, answers_of
from gateway.client.load import Exchange, quantile
from gateway.client.own_server import OwnServer
from gateway.client.plain_server import Answers

_OPENED_AT_ONCE = 32
_SECONDS_BETWEEN = 30.0  # of a stream's tokens: it is open, and does nothing
_SECONDS_PER_TOKEN = 0.02
_HEALTH_SECONDS = 0.02
_LONG_TOKENS = 10**7  # of the model that large prompts are for
_N_TOKENS = 64


async def open_streams(setting: Setting, n_streams: int) -> dict[str, object]:
    """Return what an open stream holds in memory, at the gateway and at the plain handler."""
    async with setting.gateway("--echo-seconds", str(_SECONDS_BETWEEN)) as own:
        gateway_bytes = await _bytes_per_stream(setting, own, n_streams)
    async with setting.gateway() as own:
        answers = await answers_of(setting, own.url, n_tokens=_N_TOKENS)
    slow = Answers(answers.whole, answers.events, _SECONDS_BETWEEN)
    async with setting.plain(slow) as plain:
        plain_bytes = await _bytes_per_stream(setting, plain, n_streams)
    return {
        "streams": n_streams,
        "gateway_bytes_per_stream": gateway_bytes,
        "plain_bytes_per_stream": plain_bytes,
    }


async def large_prompts(
    setting: Setting, *, at_once: int, n_bytes: int, n_streams: int, seconds: float
) -> list[dict[str, object]]:
    """Return how long /health takes and streams pause, without large prompts and with them.

    Args:
        at_once: how many clients send large prompts; each sends one at least.
        n_bytes: about how long a large prompt is.
        n_streams: how many streams are open meanwhile.
        seconds: how long each of the two is watched.
    """
    flags = ("--echo-seconds", str(_SECONDS_PER_TOKEN), "--echo-tokens", str(_LONG_TOKENS))
    rows = []
    async with setting.gateway(*flags) as own:
        for n_senders in (0, at_once):
            async with _opened(setting, own, n_streams, n_tokens=10**6) as streams:
                rows.append(await _strained(setting, own, streams, n_senders, n_bytes, seconds))
    return rows


async def _bytes_per_stream(setting: Setting, server: OwnServer, n_streams: int) -> int:
    process = psutil.Process(server.pid)
    async with _opened(setting, server, 100, n_tokens=_N_TOKENS):
        pass  # what the first ones need is not needed again
    before = process.memory_info().rss
    async with _opened(setting, server, n_streams, n_tokens=_N_TOKENS):
        return round((process.memory_info().rss - before) / n_streams)


@asynccontextmanager
async def _opened(
    setting: Setting, server: OwnServer, n_streams: int, *, n_tokens: int
) -> AsyncIterator[Sequence[Exchange]]:
    """Have so many streams that have begun, and leave them in the end."""
    gate = asyncio.Semaphore(_OPENED_AT_ONCE)
    exchanges: list[Exchange] = []

    async def begin(index: int) -> None:
        async with gate:
            exchanges.append(await Exchange.open(server.url))
            body = setting.chat(f"Am I {index}?", n_tokens=n_tokens, is_streamed=True)
            await exchanges[-1].begin(setting.request(server.url, body))

    try:
        async with asyncio.TaskGroup() as group:
            for index in range(n_streams):
                group.create_task(begin(index))
        yield exchanges
    finally:
        for exchange in exchanges:
            exchange.close()


async def _strained(
    setting: Setting,
    server: OwnServer,
    streams: Sequence[Exchange],
    n_senders: int,
    n_bytes: int,
    seconds: float,
) -> dict[str, object]:
    ends_at = time.perf_counter() + seconds
    sent = [0] * n_senders
    for stream in streams:
        stream.longest_gap_seconds = 0.0

    async def send(sender: int) -> None:
        exchange = await Exchange.open(server.url)
        while not sent[sender] or time.perf_counter() < ends_at:
            body = _large(setting, sender, sent[sender], n_bytes)
            await exchange.ask(setting.request(server.url, body))
            sent[sender] += 1
        exchange.close()

    async with asyncio.TaskGroup() as group:
        for sender in range(n_senders):
            group.create_task(send(sender))
        health = sorted(await _health(setting, server, ends_at))
    return {
        "large_prompts_at_once": n_senders,
        "large_prompts_answered": sum(sent),
        "large_prompt_bytes": n_bytes,
        "health_requests": len(health),
        "health_p50_ms": round(1000 * quantile(health, 0.5), 2),
        "health_p99_ms": round(1000 * quantile(health, 0.99), 2),
        "health_max_ms": round(1000 * health[-1], 2),
        "streams": len(streams),
        "stream_token_ms": round(1000 * _SECONDS_PER_TOKEN, 2),
        "stream_longest_gap_ms": round(1000 * max(s.longest_gap_seconds for s in streams), 2),
    }


async def _health(setting: Setting, server: OwnServer, ends_at: float) -> list[float]:
    found = []
    exchange = await Exchange.open(server.url)
    while (sent_at := time.perf_counter()) < ends_at:
        await exchange.ask(setting.request(server.url, b"", "/health"))
        found.append(time.perf_counter() - sent_at)
        await asyncio.sleep(_HEALTH_SECONDS)
    exchange.close()
    return found


def _large(setting: Setting, sender: int, turn: int, n_bytes: int) -> bytes:
    """Return a body of about `n_bytes`, unlike all others from its beginning on."""
    sentence = f"Sender {sender} writes letter {turn} to the bank, and asks for an answer. "
    text = sentence * (n_bytes // len(sentence))
    return setting.chat(text, n_tokens=1, is_streamed=False)
