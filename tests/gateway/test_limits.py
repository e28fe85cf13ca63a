"""What is refused before any work is done for it, and what waits without being in the way."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.encoding import EncodePool
from gateway.errors import OverloadedError
from prefixcache.types import FinishReason
from tests.support.gateways import MODEL, Gateway, echo_backend, running_gateway
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import write_piece_tokenizer
from tests.support.waiting import until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "one"}]}
FAR_TOO_LONG = "x" * 3000  # the model takes 100 tokens of at most 13 characters


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(
        echo_backend(tmp_path, max_model_tokens=100), max_messages=3, max_tools=2
    ) as running:
        yield running


TOOL = {"type": "function", "function": {"name": "f"}}


def user(content: str = "one") -> dict[str, str]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [user()] * 4}, "messages"),
        ({"messages": [user()], "tools": [TOOL] * 3}, "tools"),
    ],
)
async def test_counts_have_limits(
    gateway: Gateway, fields: dict[str, list[Any]], param: str
) -> None:
    """One message or tool too many is a 400 that names the field and both numbers."""
    status, reply = await gateway.post(CHAT, {"model": MODEL, **fields})
    error: Any = reply["error"]
    found = len(fields[param])
    assert (status, error["param"]) == (400, param)
    assert error["message"] == f"{param}: {found} is over this server's limit of {found - 1}"
    as_many_as_may_be = {name: values[1:] or values for name, values in fields.items()}
    assert (await gateway.post(CHAT, {"model": MODEL, **as_many_as_may_be}))[0] == 200


@pytest.mark.parametrize(
    ("path", "param", "value"),
    [
        (CHAT, "messages", [user(FAR_TOO_LONG)]),
        (TEXT, "prompt", FAR_TOO_LONG),
        (TEXT, "prompt", ["one", FAR_TOO_LONG]),
    ],
)
async def test_a_text_that_cannot_fit_is_not_tokenized(
    gateway: Gateway, path: str, param: str, value: Any
) -> None:
    """More characters than the longest tokens could hold: refused for the characters alone."""
    status, reply = await gateway.post(path, {"model": MODEL, param: value})
    error: Any = reply["error"]
    assert (status, error["param"], error["code"]) == (400, param, "context_length_exceeded")
    assert " characters; this model takes 100 tokens" in error["message"]


@pytest.mark.parametrize(
    ("prompt", "found"),
    [([0] * 200, 200), ([[0] * 99, [0] * 5000], 5099), ([[0] * 99, [0] * 200], 200)],
)
async def test_token_ids_that_cannot_fit_are_counted_first(
    gateway: Gateway, prompt: list[Any], found: int
) -> None:
    """Too many token ids are refused by their number, whatever they are."""
    status, reply = await gateway.post(TEXT, {"model": MODEL, "prompt": prompt})
    error: Any = reply["error"]
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert f"has {found} tokens" in error["message"]


async def test_a_token_id_that_is_not_there_is_named(gateway: Gateway) -> None:
    """The message says which id was found and which would do."""
    status, reply = await gateway.post(TEXT, {"model": MODEL, "prompt": [0, 999]})
    error: Any = reply["error"]
    assert (status, error["param"]) == (400, "prompt")
    assert error["message"] == "prompt: token id 999; this model has token ids below 260"


async def test_choices_share_one_packed_prompt(tmp_path: Path) -> None:
    """A prompt is packed once, however many answers it is to have."""
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = ScriptedBackend(tmp_path, [["x", FinishReason.STOP]] * 3)
    async with running_gateway(backend) as gateway:
        await gateway.post(TEXT, {"model": MODEL, "prompt": "one one", "n": 3})
    assert len({id(request.token_ids) for request in backend.requests}) == 1


async def test_health_is_answered_while_huge_bodies_are_read(tmp_path: Path) -> None:
    """Four bodies of millions of token ids hold up nobody for longer than a moment."""
    data = b'{"model":"tiny","prompt":[%b1]}' % (b"1," * (7 * 2**19))
    slowest = 0.0
    async with running_gateway(echo_backend(tmp_path)) as gateway:

        async def post() -> int:
            async with gateway.http.post(gateway.url + TEXT, data=data) as reply:
                return reply.status

        posting = [asyncio.create_task(post()) for _ in range(4)]
        while not all(task.done() for task in posting):
            asked = time.process_time()  # of all threads: what other processes take is not ours
            await asyncio.sleep(0)
            slowest = max(slowest, time.process_time() - asked)
        assert {await task for task in posting} == {400}
    assert slowest < 0.2


class Held:
    """Work that takes as long as a test wants."""

    def __init__(self) -> None:
        self.n_begun = 0
        self.may_end = threading.Event()

    def __call__(self) -> int:
        self.n_begun += 1
        self.may_end.wait(10)
        return 1


async def begin(pool: EncodePool, work: Callable[[], int]) -> asyncio.Task[int]:
    task = asyncio.create_task(pool.run(work))
    await asyncio.sleep(0)
    return task


async def test_the_queue_for_a_thread_is_bounded() -> None:
    """As many as may wait do; the next is told to come back; room is made by whoever leaves."""
    pool, work = EncodePool(n_threads=1, max_waiting=2), Held()
    tasks = [await begin(pool, work) for _ in range(3)]
    with pytest.raises(OverloadedError, match="2 requests wait"):
        await pool.run(work)
    tasks[2].cancel()
    await asyncio.gather(tasks[2], return_exceptions=True)
    tasks.append(await begin(pool, work))
    work.may_end.set()
    assert list(await asyncio.gather(tasks[0], tasks[1], tasks[3])) == [1, 1, 1]
    assert work.n_begun == 3
    assert await pool.run(work) == 1
    pool.close()


async def test_a_full_queue_is_told_to_clients(tmp_path: Path) -> None:
    """A request beyond the queue gets 429 with Retry-After at once; those in it are answered."""
    async with running_gateway(
        echo_backend(tmp_path), encode_threads=1, max_encoding_requests=1
    ) as gateway:
        work = Held()
        holding = asyncio.create_task(gateway.service.encode(work))
        asked = [asyncio.create_task(gateway.post(CHAT, BODY)) for _ in range(4)]
        await until(lambda: sum(task.done() for task in asked) == 3)
        async with gateway.http.post(gateway.url + TEXT, json=BODY) as reply:
            error = (await reply.json())["error"]
            assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
            assert (error["type"], error["code"]) == ("rate_limit_error", "overloaded")
        work.may_end.set()
        assert await holding == 1
        assert sorted([(await task)[0] for task in asked]) == [200, 429, 429, 429]


async def test_a_client_that_gives_up_in_the_queue_leaves_nothing(tmp_path: Path) -> None:
    """Attempts that time out while they wait are never rendered nor sent to the engine."""
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = ScriptedBackend(tmp_path, [["x", FinishReason.STOP]] * 5)
    async with running_gateway(backend, encode_threads=1) as gateway:
        await gateway.counters()
        before = asyncio.all_tasks()
        work = Held()
        holding = asyncio.create_task(gateway.service.encode(work))
        for _ in range(3):  # the attempt and two more
            await attempt(gateway, json.dumps(BODY).encode(), patience_seconds=0.05)
        await until(lambda: asyncio.all_tasks() <= {*before, holding})
        work.may_end.set()
        assert await holding == 1
        assert (await gateway.post(CHAT, BODY))[0] == 200
        await until(lambda: asyncio.all_tasks() <= before)
        assert (len(backend.requests), backend.n_open) == (1, 0)
        assert (await gateway.counters())["prefixcache_client_closed_total"] == 3


async def attempt(gateway: Gateway, body: bytes, *, patience_seconds: float) -> None:
    """Send a request on a connection of its own and cut it when the patience is over."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await asyncio.sleep(patience_seconds)
    writer.transport.abort()


@pytest.mark.parametrize("place", ["guided_json", "tools"])
async def test_no_depth_of_nesting_is_a_fault_of_ours(gateway: Gateway, place: str) -> None:
    """Just below what can be read, what cannot be written again is a 400 as well."""
    head = json.dumps(BODY)[:-1]
    for depth in range(960, 1000, 2):
        value = '{"a":' * depth + "1" + "}" * depth
        if place == "tools":
            tool = f'{{"type":"function","function":{{"name":"f","parameters":{value}}}}}'
            value = f'[{tool}],"tool_choice":"required"'
        data = f'{head},"{place}":{value}}}'
        async with gateway.http.post(gateway.url + CHAT, data=data) as response:
            assert response.status in (200, 400), depth
