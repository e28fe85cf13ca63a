"""The gateway with a real engine behind it: a real worker, a tiny model, official clients."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import openai
import psutil
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam

from gateway.backends.local import LocalBackend
from gateway.metrics import Metrics
from prefixcache.config import EngineConfig
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.models import write_tiny_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

SYSTEM: ChatCompletionMessageParam = {
    "role": "system",
    "content": "You answer about the weather. " * 4,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    config = EngineConfig(model=str(folder), kv_memory_bytes=8 << 20, threads=1)
    metrics = Metrics()
    backend = LocalBackend(config, on_restart=metrics.worker_restarts.inc)
    async with running_gateway(backend, metrics=metrics) as gateway:
        yield gateway


def workers() -> list[psutil.Process]:
    """Return the engine processes that this process has started."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "prefixcache.engine.worker" in child.cmdline()]


async def until_idle(gateway: Gateway) -> dict[str, float]:
    """Wait until no request runs or waits, and return the last scrape."""
    for _ in range(200):
        counters = await gateway.counters()
        busy = counters["prefixcache_requests_running"] + counters["prefixcache_requests_waiting"]
        if not busy and not counters['prefixcache_pool_blocks{state="held"}']:
            return counters
        await asyncio.sleep(0.05)
    raise AssertionError(f"still busy: {counters}")


async def test_second_request_reuses_the_first_ones_prompt(gateway: Gateway) -> None:
    """Through the official client, streamed or not, usage says what was cached."""
    answers, cached = [], []
    for question in ("rain today?", "rain tomorrow?"):
        answer = await gateway.openai.chat.completions.create(
            model=MODEL,
            messages=[SYSTEM, {"role": "user", "content": question}],
            max_tokens=8,
            temperature=0,
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        answers.append(answer.choices[0].message.content)
    assert cached[0] == 0
    assert cached[1] is not None
    assert cached[1] >= 32
    stream = await gateway.openai.chat.completions.create(
        model=MODEL,
        messages=[SYSTEM, {"role": "user", "content": "rain tomorrow?"}],
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices)
    assert text == answers[1]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert (chunks[-1].usage.prompt_tokens_details.cached_tokens or 0) > cached[1]


async def test_prompt_and_answer_stay_cached(gateway: Gateway) -> None:
    """What was read and written, less the last token, is kept in whole blocks."""
    body = {"model": MODEL, "prompt": [5, 6, 7] * 10, "max_tokens": 40, "ignore_eos": True}
    before = await until_idle(gateway)
    await gateway.post("/v1/completions", body | {"temperature": 0})
    after = await until_idle(gateway)
    cached = 'prefixcache_pool_blocks{state="cached"}'
    assert after[cached] - before[cached] == (30 + 39) // 16


async def test_dead_worker_fails_its_requests_and_comes_back(gateway: Gateway) -> None:
    """Killed in mid-answer, the worker fails its requests, and the next ones are served."""
    body = {"model": MODEL, "prompt": [5] * 40, "max_tokens": 440, "ignore_eos": True}
    running = asyncio.create_task(gateway.post("/v1/completions", body))
    for _ in range(400):
        counters = await gateway.counters()
        if counters["prefixcache_output_tokens_total"] > 2:
            break
        await asyncio.sleep(0.01)
    (worker,) = workers()
    os.kill(worker.pid, signal.SIGKILL)
    status, answer = await running
    assert status == 503
    assert isinstance(answer["error"], dict)
    async with gateway.http.get(f"{gateway.url}/health") as response:
        assert response.status == 200
    for _ in range(600):
        async with gateway.http.get(f"{gateway.url}/ready") as response:
            if response.status == 200:
                break
        await asyncio.sleep(0.1)
    status, answer = await gateway.post("/v1/completions", body | {"max_tokens": 3})
    assert status == 200
    after = await gateway.counters()
    assert after["prefixcache_worker_restarts_total"] == 1
    assert after["prefixcache_output_tokens_total"] >= counters["prefixcache_output_tokens_total"]
    assert len(workers()) == 1


async def test_disconnects_release_everything(gateway: Gateway) -> None:
    """Clients that leave at any moment, streamed or not, leave no block held and no task."""
    await gateway.counters()  # opens the connection that is kept
    tasks_before = len(asyncio.all_tasks())
    rng = random.Random(3)
    async with aiohttp.ClientSession() as http:
        visits = (visit(http, gateway.url, random.Random(rng.random())) for _ in range(40))
        await asyncio.gather(*visits)
    await until_idle(gateway)
    for _ in range(50):
        if len(asyncio.all_tasks()) <= tasks_before:
            break
        await asyncio.sleep(0.1)
    assert len(asyncio.all_tasks()) <= tasks_before


async def visit(http: aiohttp.ClientSession, url: str, rng: random.Random) -> None:
    """Send one request, and leave early half of the time."""
    body = {
        "model": MODEL,
        "messages": [SYSTEM, {"role": "user", "content": f"question {rng.random()}"}],
        "max_tokens": rng.randint(1, 60),
        "stream": rng.random() < 0.5,
    }
    patience = rng.choice([0.0, 0.01, 0.1, 0.5, 60.0, 60.0])
    try:
        async with asyncio.timeout(patience):
            async with http.post(f"{url}/v1/chat/completions", json=body) as response:
                assert response.status in {200, 429}
                await response.read()
    except TimeoutError:
        return
    except aiohttp.ClientError as error:
        raise AssertionError("the server broke the connection") from error


async def test_errors_come_in_openais_envelope(gateway: Gateway) -> None:
    """The official client raises its own exceptions for what the engine refuses."""
    with pytest.raises(openai.BadRequestError, match="tokens") as caught:
        await gateway.openai.completions.create(model=MODEL, prompt=[5] * 600, max_tokens=4)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.completions.create(model="other", prompt="x")
