"""Clients that leave or do not read, workers that die, and servers that stop."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.backends.local import LocalBackend
from gateway.config import GatewayConfig, Settings
from gateway.errors import StartError
from gateway.metrics import Metrics
from gateway.server import StopSignals, serve
from prefixcache.config import EngineConfig
from tests.support.fake_worker import DIE, ENDLESS, FLOOD, SILENT
from tests.support.gateways import MODEL, Gateway, echo_backend, running_gateway
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import write_piece_tokenizer
from tests.support.waiting import until

TEXT = "/v1/completions"
SECONDS_PER_TOKEN = 0.02
FAKE = (sys.executable, "-m", "tests.support.fake_worker")


def request_bytes(body: dict[str, Any]) -> bytes:
    data = json.dumps({"model": MODEL, **body}).encode()
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
        TEXT.encode(),
        len(data),
        data,
    )


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway over the fake worker."""
    write_piece_tokenizer(tmp_path, [b"one"])
    metrics = Metrics()
    backend = LocalBackend(
        EngineConfig(model=str(tmp_path)),
        command=FAKE,
        restart_delay_seconds=0.3,
        max_stream_bytes=100_000,
        on_restart=metrics.worker_restarts.inc,
    )
    async with running_gateway(backend, metrics=metrics, write_seconds=0.3) as gateway:
        yield gateway


def running(gateway: Gateway) -> int:
    return gateway.backend.stats().running


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [ENDLESS], "stream": True, "max_tokens": 10**6},
        {"prompt": [ENDLESS], "stream": False, "max_tokens": 10**6},
        {"prompt": [SILENT], "stream": True},
        {"prompt": [ENDLESS], "n": 3, "stream": True, "max_tokens": 10**6},
    ],
)
async def test_a_client_that_leaves_is_cancelled(
    local: Gateway, caplog: pytest.LogCaptureFixture, body: dict[str, Any]
) -> None:
    """Whether streamed or not, the engine drops the request; one line, one count, no traceback."""
    caplog.set_level(logging.INFO)
    before = asyncio.all_tasks()
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", local.port)
        writer.write(request_bytes(body))
        await until(lambda: running(local) == body.get("n", 1))
        writer.transport.abort()
        await until(lambda: running(local) == 0)
    await until(lambda: asyncio.all_tasks() <= before)
    lines = [r for r in caplog.records if r.name == "gateway.requests"]
    assert [line.levelname for line in lines] == ["INFO"] * 5
    assert all("status=499" in line.getMessage() for line in lines)
    assert all(record.exc_info is None for record in caplog.records)
    assert (await local.counters())["prefixcache_client_closed_total"] == 5


async def test_disconnects_at_any_moment_leave_nothing(
    local: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut before, during and after the headers: no traceback, nothing running, no task left."""
    before = asyncio.all_tasks()
    sent = request_bytes({"prompt": [ENDLESS], "stream": True, "max_tokens": 10**6})
    for i in range(60):
        _, writer = await asyncio.open_connection("127.0.0.1", local.port)
        writer.write(sent[: 1 + len(sent) * i // 40])
        await asyncio.sleep(0.002 * (i % 7))
        writer.transport.abort()
    await until(lambda: running(local) == 0 and asyncio.all_tasks() <= before)
    gc.collect()
    assert all(record.exc_info is None for record in caplog.records)
    assert all(record.levelno < logging.WARNING for record in caplog.records)


async def test_a_client_that_does_not_read_is_dropped(local: Gateway) -> None:
    """A stream that nobody reads ends within bounds; a reader beside it is served."""
    await local.counters()  # the connection that the tests themselves keep open
    before = asyncio.all_tasks()
    blocked = socket.create_connection(("127.0.0.1", local.port))
    blocked.sendall(request_bytes({"prompt": [FLOOD], "stream": True, "max_tokens": 10**6}))
    await until(lambda: running(local) == 1)
    status, reply = await local.post(TEXT, {"model": MODEL, "prompt": [7, 8, 9]})
    choices: Any = reply["choices"]
    assert (status, choices[0]["text"]) == (200, "7 8 9 ")
    await until(lambda: running(local) == 0)
    await until(lambda: asyncio.all_tasks() <= before)
    blocked.close()


async def test_clients_that_read_by_drops_are_dropped(local: Gateway) -> None:
    """Ten who read a little at a time keep neither their requests running nor others waiting."""
    await local.counters()
    before = asyncio.all_tasks()
    drops = [asyncio.create_task(read_by_drops(local.port)) for _ in range(10)]
    await until(lambda: running(local) > 5)
    for _ in range(2):
        fast = await asyncio.wait_for(local.post(TEXT, {"model": MODEL, "prompt": [7, 8, 9]}), 5)
        assert fast[0] == 200
    await until(lambda: running(local) == 0)
    for each in drops:
        each.cancel()
    await asyncio.gather(*drops, return_exceptions=True)
    await until(lambda: asyncio.all_tasks() <= before)
    assert (await local.post(TEXT, {"model": MODEL, "prompt": [7]}))[0] == 200


async def read_by_drops(port: int) -> None:
    """Ask for a flood, and read 50 bytes of it at a time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=50)
    writer.write(request_bytes({"prompt": [FLOOD], "stream": True, "max_tokens": 10**6}))
    try:
        while await reader.read(50):  # noqa: ASYNC110 - slowness is what it is for
            await asyncio.sleep(0.02)
    finally:
        writer.transport.abort()


async def test_a_reader_that_is_slow_for_a_while_loses_nothing(tmp_path: Path) -> None:
    """A client that stops reading within the limits gets every piece, in order, afterwards."""
    pieces = [b"%06d," % i * 40 for i in range(60)]
    backend = echo_backend(tmp_path, pieces)
    async with running_gateway(backend, write_seconds=5) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        body = {"prompt": list(range(60)), "stream": True, "max_tokens": 1500, "ignore_eos": True}
        writer.write(request_bytes(body))
        await asyncio.sleep(0.3)
        received = b""
        while b"[DONE]" not in received:
            received += await reader.read(4096)
        writer.close()
    texts = [
        json.loads(line[6:])["choices"][0]["text"]
        for line in received.decode().splitlines()
        if line.startswith("data: {")
    ]
    assert "".join(texts) == (b"".join(pieces) * 25).decode()


async def test_a_dead_worker_costs_its_requests_and_nothing_else(local: Gateway) -> None:
    """In-flight requests end with a clear error; then 503 with Retry-After; then all is well."""
    stream = await local.openai.completions.create(
        model=MODEL, prompt=[ENDLESS], max_tokens=10**6, stream=True
    )
    await anext(aiter(stream))
    status, reply = await local.post(TEXT, {"model": MODEL, "prompt": [DIE]})
    error: Any = reply["error"]
    assert (status, error["code"]) == (503, "worker_died")
    with pytest.raises(openai.APIError, match="worker died"):
        async for _ in stream:
            pass
    async with local.http.get(local.url + "/ready") as ready:
        assert (ready.status, ready.headers["Retry-After"]) == (503, "2")
    async with local.http.get(local.url + "/health") as health:
        assert health.status == 200
    status, _ = await local.post(TEXT, {"model": MODEL, "prompt": [7]})
    assert status == 503
    await until(lambda: local.service.is_ready)
    assert (await local.post(TEXT, {"model": MODEL, "prompt": [7]}))[0] == 200
    assert (await local.counters())["prefixcache_worker_restarts_total"] == 1


async def test_counters_never_fall_whatever_happens(local: Gateway) -> None:
    """Cancels, refusals and a worker's death leave every counter where it was or higher."""
    scrapes = [await local.counters()]
    for prompt in ([7, 8], [DIE], [9], [7, 8], ["x"], [10**9]):
        await local.post(TEXT, {"model": MODEL, "prompt": prompt})
        await until(lambda: local.service.is_ready)
        scrapes.append(await local.counters())
    for before, after in pairwise(scrapes):
        for name, value in before.items():
            if "_total" in name or "_count" in name or "_bucket" in name:
                assert after[name] >= value, name
    assert scrapes[-1]["prefixcache_prompt_tokens_total"] > 0
    assert all(value >= 0 for value in scrapes[-1].values())


async def test_health_is_answered_while_a_prompt_is_rendered(tmp_path: Path) -> None:
    """A template that takes its time keeps nobody else waiting."""
    backend = echo_backend(tmp_path)
    slow = "{% for i in range(300) %}{% for j in range(10000) %}{% endfor %}{% endfor %}one"
    (tmp_path / "chat_template.jinja").write_text(slow, encoding="utf-8")
    async with running_gateway(backend) as gateway:
        n_answered = 0
        body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
        posting = asyncio.create_task(gateway.post("/v1/chat/completions", body))
        while not posting.done():
            async with gateway.http.get(gateway.url + "/health") as reply:
                assert reply.status == 200
            n_answered += 1
        assert (await posting)[0] == 200
        assert n_answered >= 8, n_answered  # a loop that renders itself comes to four


class Life:
    """One call of `serve` with an echo, as the command makes it."""

    def __init__(self, folder: Path, **settings: float) -> None:
        self.signals = StopSignals()
        self.said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        config = GatewayConfig(port=0, served_model_name=MODEL, **settings)  # type: ignore[arg-type]
        backend = echo_backend(folder, seconds_per_token=SECONDS_PER_TOKEN)
        self.serving = asyncio.create_task(
            serve(
                Settings(server=config),
                lambda _: backend,
                announce=self.said.set_result,
                signals=self.signals,
            )
        )

    async def client(self) -> openai.AsyncOpenAI:
        url = await self.said
        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


async def stream_of(client: openai.AsyncOpenAI, n_tokens: int) -> Any:
    return await client.completions.create(
        model=MODEL,
        prompt="one",
        max_tokens=n_tokens,
        stream=True,
        extra_body={"ignore_eos": True},
    )


async def test_a_stop_lets_running_requests_end(tmp_path: Path) -> None:
    """After the first signal no new request is taken, and the one that runs ends as usual."""
    life = Life(tmp_path, drain_seconds=10)
    async with await life.client() as client, await life.client() as late:
        await client.models.list()
        stream = await stream_of(client, 20)
        await late.models.list()  # its connection stays open, so that it can still ask
        texts = [(await anext(aiter(stream))).choices[0].text]
        life.signals.notice(15)
        await asyncio.sleep(0.05)
        with pytest.raises(openai.InternalServerError) as refused:
            await late.models.list()
        assert refused.value.code == "draining"
        async with await life.client() as stranger:
            with pytest.raises(openai.APIConnectionError):
                await stranger.models.list()
        texts += [chunk.choices[0].text async for chunk in stream]
        assert "".join(texts) == "one" * 20
    assert await asyncio.wait_for(life.serving, 5) == 0


async def test_a_drain_keeps_the_pace_of_streams(tmp_path: Path) -> None:
    """Tokens come one by one while the server waits for the stream's end, as they did before."""
    life = Life(tmp_path, drain_seconds=10)
    async with await life.client() as client:
        came = []
        async for _ in await stream_of(client, 30):
            came.append(time.perf_counter())
            if len(came) == 5:
                life.signals.notice(15)
    gaps = [later - earlier for earlier, later in pairwise(came[4:30])]
    assert came[29] - came[4] > 25 * SECONDS_PER_TOKEN / 2  # not all of them at the end
    assert sorted(gaps)[len(gaps) // 2] < 5 * SECONDS_PER_TOKEN
    assert max(gaps) < 1  # nor after a wait
    assert await asyncio.wait_for(life.serving, 5) == 0


async def test_a_drain_has_an_end(tmp_path: Path) -> None:
    """What still runs when the time is over ends with an error event, and the exit is clean."""
    life = Life(tmp_path, drain_seconds=0.1)
    async with await life.client() as client:
        stream = await stream_of(client, 2000)
        life.signals.notice(15)
        with pytest.raises(openai.APIError, match="server"):
            async for _ in stream:
                pass
    assert await asyncio.wait_for(life.serving, 5) == 0


async def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    """Asked twice, the server ends at once and says by its exit code that it was hurried."""
    life = Life(tmp_path, drain_seconds=60)
    async with await life.client() as client:
        await stream_of(client, 2000)
        life.signals.notice(15)
        life.signals.notice(2)
        assert await asyncio.wait_for(life.serving, 5) == 130


async def test_a_signal_while_the_model_loads_ends_the_server(tmp_path: Path) -> None:
    """A server that is told to stop before it answers ends cleanly; meanwhile it says 503."""
    signals = StopSignals()
    backend = LocalBackend(
        EngineConfig(),
        command=(*FAKE, "--start", "hang"),
        report=lambda _: signals.notice(15),
    )

    def never(url: str) -> None:
        raise AssertionError(url)

    settings = Settings(server=GatewayConfig(port=0))
    serving = serve(settings, lambda _: backend, announce=never, signals=signals)
    assert await asyncio.wait_for(serving, 10) == 0


async def test_a_taken_port_is_a_start_error(tmp_path: Path) -> None:
    """A port that another process holds is said so, and nothing is started."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        settings = Settings(server=GatewayConfig(port=held.getsockname()[1]))
        backend = ScriptedBackend(tmp_path, [])
        with pytest.raises(StartError, match="cannot listen"):
            await serve(settings, lambda _: backend, announce=print, signals=StopSignals())
