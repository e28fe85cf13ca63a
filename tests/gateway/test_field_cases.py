"""What has gone wrong for others in the field, asked of a server with an engine."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.bodies import CHAT, TEXT
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.inline import InlineBackend
from tests.support.models import write_tiny_model
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
