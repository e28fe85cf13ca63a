"""A thousand requests with clients that leave: nothing may be left behind."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import aiohttp
import msgspec
import psutil
import pytest

from gateway.backends.local import LocalBackend
from prefixcache.bench import machine
from prefixcache.config import EngineConfig
from tests.support.gateways import MODEL, Gateway, running_gateway

N_REQUESTS = 1000
N_SETTLED = 200
AT_A_TIME = 8
SYSTEMS = [f"You are assistant number {number}. " + "Be brief. " * 40 for number in range(6)]


@pytest.mark.slow
@pytest.mark.model
async def test_a_thousand_requests_leave_nothing_behind() -> None:
    """Real model, random disconnects: no block held, no task left, no memory grown."""
    config = EngineConfig(model=os.environ.get("PREFIXCACHE_TEST_MODEL"), kv_memory_bytes=256 << 20)
    async with running_gateway(LocalBackend(config)) as gateway:
        await gateway.counters()
        tasks_before = len(asyncio.all_tasks())
        rng = random.Random(17)
        await run(gateway, rng, N_SETTLED)
        settled = memory()
        await run(gateway, rng, N_REQUESTS - N_SETTLED)
        grown = {name: after / settled[name] for name, after in memory().items()}
        counters = await gateway.counters()
        write_result(counters, settled, grown)
        assert counters['prefixcache_pool_blocks{state="held"}'] == 0
        assert counters["prefixcache_requests_running"] == 0
        assert counters["prefixcache_requests_waiting"] == 0
        assert counters["prefixcache_client_closed_total"] > N_REQUESTS / 10
        assert len(asyncio.all_tasks()) <= tasks_before
        assert all(ratio <= 1.05 for ratio in grown.values())


def write_result(
    counters: dict[str, float], settled: dict[str, int], grown: dict[str, float]
) -> None:
    """Write what was seen to the file that PREFIXCACHE_SOAK_RESULT names, if it names one."""
    if (file := os.environ.get("PREFIXCACHE_SOAK_RESULT")) is None:
        return
    shown = ("http_requests_total", "client_closed_total", "pool_blocks", "tokens_total")
    result = {
        "command": f"PREFIXCACHE_SOAK_RESULT={file} pytest tests/gateway/test_soak.py -m slow",
        "model": os.environ.get("PREFIXCACHE_TEST_MODEL", "SmolLM2-135M-Instruct"),
        "machine": machine(),
        "requests": N_REQUESTS,
        f"resident_bytes_after_{N_SETTLED}": settled,
        f"resident_after_{N_REQUESTS}_over_after_{N_SETTLED}": grown,
        "counters": {name: n for name, n in counters.items() if any(s in name for s in shown)},
    }
    Path(file).write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def memory() -> dict[str, int]:
    """Return resident bytes of the gateway's process and of its worker's."""
    own = psutil.Process()
    (worker,) = [
        p for p in own.children(recursive=True) if "prefixcache.engine.worker" in p.cmdline()
    ]
    return {"gateway": own.memory_info().rss, "worker": worker.memory_info().rss}


async def run(gateway: Gateway, rng: random.Random, n_requests: int) -> None:
    """Send requests, eight at a time, and wait until the engine is idle."""
    gate = asyncio.Semaphore(AT_A_TIME)

    async def one(http: aiohttp.ClientSession, seed: float) -> None:
        async with gate:
            await visit(http, gateway.url, random.Random(seed))

    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        for _ in range(n_requests):
            group.create_task(one(http, rng.random()))
    for _ in range(100):
        counters = await gateway.counters()
        if not counters["prefixcache_requests_running"] and len(asyncio.all_tasks()) < 4:
            return
        await asyncio.sleep(0.1)


async def visit(http: aiohttp.ClientSession, url: str, rng: random.Random) -> None:
    """Ask one question; leave early in about a third of the visits."""
    body = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": rng.choice(SYSTEMS)},
            {"role": "user", "content": f"Tell me about the number {rng.randint(1, 10**6)}."},
        ],
        "max_tokens": rng.randint(1, 12),
        "stream": rng.random() < 0.5,
    }
    patience = rng.choice([0.0, 0.05, 0.3, None, None, None, None, None])
    try:
        async with (
            asyncio.timeout(patience),
            http.post(f"{url}/v1/chat/completions", json=body) as response,
        ):
            assert response.status == 200
            await response.read()
    except TimeoutError:
        return
