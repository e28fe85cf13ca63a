"""What has gone wrong for others in the field, asked of a server with an engine."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from prefixcache.text import Tokenizer
from tests.support.bodies import CHAT, TEXT
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.inline import InlineBackend
from tests.support.models import Bench, write_tiny_model
from tests.support.tokenizers import write_chat_tokenizer
from tests.support.traces import CASES, needs_cases
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = "/v1/messages"
CONTEXT_TOKENS = 4096  # for the longest of the bodies
STATUSES: list[tuple[str, str, list[int]]] = [  # by the path that the bodies are for
    ("T02", CHAT, [200] * 2),
    ("T09", CHAT, [200]),
    ("T10", CHAT, [200, 200, 400]),
    ("T11", CHAT, [200, 200, 200, 200, 400]),
    ("T13", CHAT, [200] * 3),
    ("T15", CHAT, [200] * 2),
    ("U01", CHAT, [200] * 3),
    ("H06", CHAT, [200]),
    ("H10", TEXT, [400] * 7),
    ("H10", CHAT, [400] * 7),
    ("H11", CHAT, [400] * 2),
    ("H12", CHAT, [200, 200, 400, 400, 400, 400, 400]),
    ("H13", CHAT, [400] * 3),
    ("H17", CHAT, [400, 400, 400, 400, 200]),
    ("H18", CHAT, [404, 404, 400, 400, 400]),
    ("H18", MESSAGES, [404, 404, 400, 400, 400]),
    ("H26", CHAT, [200] * 3),
    ("X10", CHAT, [400]),
    ("A02", CHAT, [200]),
    ("A02", MESSAGES, [200]),
    ("A03", MESSAGES, [400, 200, 400, 200]),
    ("A04", MESSAGES, [200] * 2),
    ("A05", MESSAGES, [200]),
    ("A10", MESSAGES, [200] * 2),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    longer = settings | {"max_position_embeddings": CONTEXT_TOKENS}
    (folder / "config.json").write_text(json.dumps(longer), encoding="utf-8")
    async with running_gateway(InlineBackend.load(folder, 16 << 20)) as running:
        yield running


def bodies(case: str) -> list[dict[str, Any]]:
    assert CASES is not None
    found = json.loads((Path(CASES) / "inputs" / f"{case}.json").read_text(encoding="utf-8"))
    return found if isinstance(found, list) else [found]


@needs_cases
@pytest.mark.parametrize(("case", "path", "expected"), STATUSES)
async def test_bodies_from_the_field_are_answered_as_the_rules_say(
    gateway: Gateway, case: str, path: str, expected: list[int]
) -> None:
    """None is a fault of ours, none hangs, and a good request is served after them."""
    found = []
    for body in bodies(case):
        async with gateway.http.post(gateway.url + path, json=body) as reply:
            await reply.read()
            found.append(reply.status)
    assert found == expected
    assert (await gateway.post(TEXT, {"model": MODEL, "prompt": "x", "max_tokens": 1}))[0] == 200


async def visit(gateway: Gateway, kind: int, rng: random.Random) -> None:
    """Ask in one of several ways, give up early, or have all forgotten."""
    body = {"model": MODEL, "prompt": "one two three " * 6, "max_tokens": rng.randint(1, 40)}
    match kind:
        case 0:
            await gateway.post("/admin/invalidate", {"kind": "everything"})
        case 1:
            assert (await gateway.post(TEXT, body))[0] == 200
        case 2:
            await gateway.post(TEXT, {**body, "prompt": f"{rng.random()}", "max_tokens": 0.5})
        case _:
            try:
                async with asyncio.timeout(rng.random() / 10):
                    await gateway.post(TEXT, {**body, "n": 2, "ignore_eos": True})
            except TimeoutError:
                pass


async def test_counters_only_rise_while_all_is_mixed(gateway: Gateway) -> None:
    """Twins, clients that leave, refusals and invalidations; gauges are never negative."""
    rng = random.Random(5)
    scrapes = [await gateway.counters()]
    visits = asyncio.gather(*(visit(gateway, n % 4, random.Random(n)) for n in range(24)))
    while not visits.done():
        await asyncio.sleep(0.02 + rng.random() / 50)
        scrapes.append(await gateway.counters())
    await visits
    await until(lambda: gateway.backend.stats().running == 0)
    scrapes.append(await gateway.counters())
    assert len(scrapes) > 3
    for before, after in pairwise(scrapes):
        assert all(value >= 0 for value in after.values())
        for name, value in before.items():
            if any(part in name for part in ("_total", "_count", "_sum", "_bucket")):
                assert after[name] >= value, name
    held = [value for name, value in scrapes[-1].items() if 'state="held"' in name]
    assert held == [0]


@asynccontextmanager
async def crowded_gateway(folder: Path, **options: Any) -> AsyncIterator[Gateway]:
    """Serve a tiny engine with settings of its own."""
    write_chat_tokenizer(folder)
    bench = Bench(tokenizer=Tokenizer.load(folder), **options)
    async with running_gateway(InlineBackend(bench.engine, folder)) as running:
        yield running


def long_answer(prompt: list[int], max_tokens: int) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}


async def test_a_rush_is_answered_or_refused_at_once(tmp_path: Path) -> None:
    """No more wait than may; the others are told to come back while the first ones still run."""
    n_waiting = []
    async with crowded_gateway(tmp_path, max_running_requests=2, max_waiting_requests=8) as gateway:

        async def ask(number: int) -> tuple[int, str, float]:
            body = long_answer([number] * 5, 60)
            async with gateway.http.post(gateway.url + TEXT, json=body) as reply:
                told: Any = await reply.json()
                n_waiting.append(gateway.backend.stats().waiting)
                code = told["error"]["code"] if "error" in told else ""
                return reply.status, code, float(reply.headers.get("Retry-After", 0))

        found = await asyncio.gather(*map(ask, range(200)))
        assert (await gateway.post(TEXT, long_answer([7], 1)))[0] == 200
    refused = [each for each in found if each[0] != 200]
    assert {each[:2] for each in refused} == {(429, "overloaded")}
    assert all(retry_after > 0 for *_, retry_after in refused)
    assert 10 <= 200 - len(refused) < 100
    assert max(n_waiting) <= 8


async def test_who_gave_up_in_the_engines_queue_is_never_computed(tmp_path: Path) -> None:
    """Attempts that are cut off while they wait leave the queue, and the model sees none."""
    async with crowded_gateway(tmp_path, n_blocks=120, max_running_requests=1) as gateway:
        stats = gateway.backend.stats
        running = asyncio.create_task(gateway.post(TEXT, long_answer([7] * 9, 400)))
        await until(lambda: stats().running == 1)
        for _ in range(3):  # the attempt and two more
            attempts = [
                asyncio.create_task(gateway.post(TEXT, long_answer([n] * 9, 9))) for n in range(5)
            ]
            await until(lambda: stats().waiting == 5)
            for attempt in attempts:
                attempt.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)
            await until(lambda: stats().waiting == 0)
            assert not running.done()
        assert (await running)[0] == 200
        counters = await gateway.counters()
    assert stats().prompt_tokens_total == 9
    assert stats().computed_tokens_total == 9 + 400 - 1
    assert counters["prefixcache_requests_waiting"] == 0


async def test_the_pools_gauges_tell_what_is_kept_from_what_is_used(tmp_path: Path) -> None:
    """Idle, nothing is held and the rest is cached or free; who needs more evicts and runs."""
    async with crowded_gateway(tmp_path, n_blocks=24, max_running_requests=2) as gateway:
        running = asyncio.create_task(gateway.post(TEXT, long_answer([300] * 9, 60)))
        await until(lambda: gateway.backend.stats().running)
        busy = await gauges(gateway)
        assert (await running)[0] == 200
        for number in range(10):
            assert (await gateway.post(TEXT, long_answer([number] * 9, 4)))[0] == 200
        idle = await gauges(gateway)
        evicted = gateway.backend.stats().evicted_blocks_total
        assert (await gateway.post(TEXT, long_answer([200] * 70, 4)))[0] == 200  # 19 blocks
        after = await gauges(gateway)
    assert busy["held"] > 0
    assert idle["held"] == after["held"] == 0
    assert idle["cached"] > 0
    assert sum(busy.values()) == sum(idle.values()) == sum(after.values()) == 24
    assert gateway.backend.stats().evicted_blocks_total > evicted


async def gauges(gateway: Gateway) -> dict[str, float]:
    """Return the pool's blocks by state."""
    counters = await gateway.counters()
    return {
        state: counters[f'prefixcache_pool_blocks{{state="{state}"}}']
        for state in ("free", "cached", "held")
    }
