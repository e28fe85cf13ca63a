"""Half an hour of everything at once: what is answered is right, and nothing is left behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from gateway.backends.local import LocalBackend
from gateway.config import GatewayConfig, Settings
from gateway.metrics import Metrics
from gateway.prompts_db import PromptsDb
from gateway.tenancy import Tenancy
from gateway.tenants import TenantConfig
from gateway.usage_db import UsageDb
from prefixcache.bench import machine
from prefixcache.config import EngineConfig
from prefixcache.errors import ConfigError
from tests.gateway.test_soak import memory
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.tenancy import ACME, ADMIN, BETA, bearer, keyed_settings

SECONDS = float(os.environ.get("PREFIXCACHE_SOAK_SECONDS", "1800"))
SETTLED_SECONDS = SECONDS / 6
N_VISITORS = 6
MOST_GROWTH = 1.05
TIE = 0.01  # nats between two tokens that rounding may exchange
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
SYSTEMS = [f"You are assistant number {number}. " + "Be brief. " * 60 for number in range(5)]
BAD_BODIES = [
    b"{",
    b"[]",
    b'{"model": "tiny", "messages": 5}',
    b'{"model": "tiny", "messages": [{"role": "user", "content": {"a": 1}}]}',
    b'{"model": "none", "messages": [{"role": "user", "content": "x"}]}',
    b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "n": 100000}',
]


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt with one right answer: greedy, and as long as it says."""

    system: int
    number: int

    @property
    def body(self) -> dict[str, Any]:
        return {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": SYSTEMS[self.system]},
                {"role": "user", "content": f"Tell me about the number {self.number}."},
            ],
            "max_tokens": 1 + self.number % 12,
            "temperature": 0,
        }

    @property
    def anthropic(self) -> dict[str, Any]:
        system, *messages = self.body["messages"]
        return self.body | {"system": system["content"], "messages": messages}


@dataclass
class Seen:
    """What the clients saw."""

    texts: dict[Question, set[str]] = field(default_factory=lambda: defaultdict(set))
    counts: Counter[str] = field(default_factory=Counter)


class File:
    """A configuration that is edited while the server runs."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._versions = itertools.count()

    def read(self) -> Settings:
        """Every third time it is wrong; a tenant's rate changes else."""
        version = next(self._versions)
        if version % 3 == 2:
            raise ConfigError("tenants", version, "this file is half written")
        beta = TenantConfig(requests_per_minute=40 if version % 2 else 0)
        return keyed_settings(self._config, None, beta)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Gateway]:
    model = os.environ.get("PREFIXCACHE_TEST_MODEL")
    engine = EngineConfig(model=model, weights="float32", kv_memory_bytes=256 << 20)
    file = File(GatewayConfig(port=0, served_model_name=MODEL))

    def tenancy(config: GatewayConfig, metrics: Metrics) -> Tenancy:
        usage = UsageDb.open(folder / "usage.db")
        return Tenancy(
            keyed_settings(config), metrics, usage, clock=time.monotonic, wall_clock=time.time
        )

    async with running_gateway(
        LocalBackend(engine),
        make_tenancy=tenancy,
        read_settings=file.read,
        prompts_db=PromptsDb.open(folder / "prompts.db"),
    ) as gateway:
        yield gateway


@pytest.mark.slow
@pytest.mark.model
async def test_half_an_hour_of_everything(tmp_path: Path) -> None:
    """Real model, dialects, disconnects, bad bodies, reloads, invalidations, publications."""
    seen = Seen()
    async with served(tmp_path) as gateway:
        await gateway.counters(**bearer(ADMIN))
        tasks_before = len(asyncio.all_tasks())
        end = time.monotonic() + SECONDS
        async with asyncio.TaskGroup() as group:
            for seed in range(N_VISITORS):
                group.create_task(visit(gateway, random.Random(seed), seen, end))
            group.create_task(operate(gateway, random.Random(99), seen, end))
            settled = group.create_task(memory_after(SETTLED_SECONDS))
        grown = {name: now / settled.result()[name] for name, now in memory().items()}
        counters = await idle_counters(gateway)
        n_tasks = len(asyncio.all_tasks())
        ties, wrong = await solo_differences(gateway, seen)
        write_result(seen, settled.result(), grown, counters, ties, n_tasks - tasks_before)
        assert wrong == []
        assert counters['prefixcache_pool_blocks{state="held"}'] == 0
        assert n_tasks <= tasks_before
        assert all(ratio <= MOST_GROWTH for ratio in grown.values()), grown
        for kind in ("chat", "streamed", "messages", "left", "refused", "reloads", "invalidated"):
            assert seen.counts[kind], kind


async def visit(gateway: Gateway, rng: random.Random, seen: Seen, end: float) -> None:
    """Ask, leave early or send nonsense, one after another, as either tenant."""
    async with aiohttp.ClientSession(gateway.url) as http:
        while time.monotonic() < end:
            key = rng.choice([ACME, BETA])
            question = Question(rng.randrange(len(SYSTEMS)), rng.randrange(60))
            (act,) = rng.choices(ACTIONS, WEIGHTS)
            await act(http, key, question, rng, seen)


async def ask(
    http: aiohttp.ClientSession, key: str, question: Question, _: random.Random, seen: Seen
) -> None:
    async with http.post(CHAT, json=question.body, headers=bearer(key)) as response:
        reply = await response.json()
        if is_answered(response, seen):
            seen.texts[question].add(reply["choices"][0]["message"]["content"])
            seen.counts["chat"] += 1


async def ask_streamed(
    http: aiohttp.ClientSession, key: str, question: Question, _: random.Random, seen: Seen
) -> None:
    body = question.body | {"stream": True}
    async with http.post(CHAT, json=body, headers=bearer(key)) as response:
        lines = (await response.text()).splitlines()
        if is_answered(response, seen):
            data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
            assert data.pop() == "[DONE]"
            deltas = [msgspec.json.decode(each)["choices"][0]["delta"] for each in data]
            seen.texts[question].add("".join(delta.get("content") or "" for delta in deltas))
            seen.counts["streamed"] += 1


async def ask_messages(
    http: aiohttp.ClientSession, key: str, question: Question, _: random.Random, seen: Seen
) -> None:
    async with http.post(MESSAGES, json=question.anthropic, headers={"x-api-key": key}) as response:
        reply = await response.json()
        if is_answered(response, seen):
            seen.texts[question].add("".join(part["text"] for part in reply["content"]))
            seen.counts["messages"] += 1


async def leave(
    http: aiohttp.ClientSession, key: str, question: Question, rng: random.Random, seen: Seen
) -> None:
    """Close the connection before the answer is there, in the midst of a stream or before it."""
    body = question.body | {"stream": rng.random() < 0.5, "max_tokens": 64}
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(rng.choice([0.01, 0.1, 0.5])),
            http.post(CHAT, json=body, headers=bearer(key)) as response,
        ):
            await response.read()
            return
    seen.counts["left"] += 1


async def send_bad(
    http: aiohttp.ClientSession, key: str, _: Question, rng: random.Random, seen: Seen
) -> None:
    headers = bearer(key) | {"Content-Type": "application/json"}
    async with http.post(CHAT, data=rng.choice(BAD_BODIES), headers=headers) as response:
        assert response.status in (400, 404, 429), await response.text()
    async with http.post(CHAT, json={}, headers=bearer("unknown")) as response:
        assert response.status == 401
    seen.counts["refused"] += 1


def is_answered(response: aiohttp.ClientResponse, seen: Seen) -> bool:
    """Whether it is an answer; a tenant's rate may refuse it, nothing else may."""
    assert response.status in (200, 429), response.status
    seen.counts["limited"] += response.status == 429
    return response.status == 200


ACTIONS, WEIGHTS = (ask, ask_streamed, ask_messages, leave, send_bad), (4, 4, 3, 2, 1)


async def operate(gateway: Gateway, rng: random.Random, seen: Seen, end: float) -> None:
    """Every few seconds: reload, look, invalidate or publish."""
    admin = bearer(ADMIN)
    for version in itertools.count(1):
        if time.monotonic() > end:
            return
        status, reply = await gateway.post("/admin/reload", None, **admin)
        assert status in (200, 400, 422), reply
        seen.counts["reloads" if status == 200 else "refused_reloads"] += 1
        kinds: list[dict[str, str]] = [{"kind": "everything"}, {"kind": "model"}]
        kinds += [{"kind": "tenant", "name": name} for name in ("acme", "beta")]
        status, reply = await gateway.post("/admin/invalidate", rng.choice(kinds), **admin)
        assert status == 200, reply
        seen.counts["invalidated"] += 1
        prompt = {"name": "desk", "version": version, "system": rng.choice(SYSTEMS)}
        status, reply = await gateway.post("/v1/prompts", prompt, **admin)
        assert status in (200, 201), reply
        seen.counts["published"] += 1
        for path in ("/metrics", "/admin/stats", "/admin/dashboard?nodes=50"):
            async with gateway.http.get(gateway.url + path, headers=admin) as response:
                assert response.status == 200
                await response.read()
        await asyncio.sleep(rng.uniform(2, 8))


async def memory_after(seconds: float) -> dict[str, int]:
    await asyncio.sleep(seconds)
    return memory()


async def idle_counters(gateway: Gateway) -> dict[str, float]:
    """Retire what is published, and scrape once nothing runs."""
    admin = bearer(ADMIN)
    gone = {"kind": "prompt", "name": "desk"}
    assert (await gateway.post("/admin/invalidate", gone, **admin))[0] == 200
    for _ in range(200):
        counters = await gateway.counters(**bearer(ADMIN))
        held = counters['prefixcache_pool_blocks{state="held"}']
        if not counters["prefixcache_requests_running"] and not held:
            return counters
        await asyncio.sleep(0.1)
    raise AssertionError(f"still busy: {counters}")


async def solo_differences(gateway: Gateway, seen: Seen) -> tuple[int, list[Question]]:
    """Ask everything once more alone and uncached; return near ties and wrong answers."""
    n_ties, wrong = 0, []
    for question, texts in seen.texts.items():
        extra = {"cache": {"read": False, "store": False}, "logprobs": True, "top_logprobs": 2}
        status, reply = await gateway.post(CHAT, question.body | extra, **bearer(ACME))
        assert status == 200, reply
        choices: Any = reply["choices"]
        others = texts - {choices[0]["message"]["content"]}
        n_ties += len(others)
        if not all(is_tie(choices[0], text) for text in others):
            wrong.append(question)
    return n_ties, wrong


def is_tie(choice: Any, text: str) -> bool:
    """Whether a text leaves a choice where its two best tokens were as good as equal."""
    so_far = ""
    for token in choice["logprobs"]["content"]:
        if not text.startswith(so_far + token["token"]):
            best, second = (each["logprob"] for each in token["top_logprobs"])
            return bool(best - second < TIE)
        so_far += token["token"]
    return False


def write_result(
    seen: Seen,
    settled: dict[str, int],
    grown: dict[str, float],
    counters: dict[str, float],
    n_ties: int,
    n_tasks_left: int,
) -> None:
    """Write what was seen to the file that PREFIXCACHE_SOAK_RESULT names, if it names one."""
    if (file := os.environ.get("PREFIXCACHE_SOAK_RESULT")) is None:
        return
    shown = ("client_closed_total", "pool_blocks", "prompt_tokens_total", "cached_tokens_total")
    result = {
        "command": f"PREFIXCACHE_SOAK_RESULT={file} pytest tests/gateway/test_long_soak.py -m slow",
        "model": os.environ.get("PREFIXCACHE_TEST_MODEL", "SmolLM2-135M-Instruct"),
        "machine": machine(),
        "seconds": SECONDS,
        "counts": dict(sorted(seen.counts.items())),
        "questions_asked_again_alone": len(seen.texts),
        "answers_that_differ_by_a_near_tie": n_ties,
        "tasks_left": n_tasks_left,
        f"resident_bytes_after_{SETTLED_SECONDS:.0f}_seconds": settled,
        "resident_at_the_end_to_that": grown,
        "counters": {
            name: n
            for name, n in counters.items()
            if any(each in name for each in shown) and "tenant" not in name
        },
    }
    Path(file).write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
