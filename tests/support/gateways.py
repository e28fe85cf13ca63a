"""A real gateway on a loopback port, in the test's own event loop."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import aiohttp
from openai import AsyncOpenAI

from gateway.backends.base import Backend
from gateway.backends.echo import EchoBackend
from gateway.config import GatewayConfig, Settings
from gateway.metrics import Metrics
from gateway.prompts_db import PromptsDb
from gateway.server import make_runner, open_listener, url_of
from gateway.service import Service
from gateway.tenancy import Tenancy
from tests.support.tokenizers import write_piece_tokenizer

MODEL = "tiny"
ConfigValue = str | int | float | tuple[str, ...]


@dataclass
class Gateway:
    """A running gateway and ways to talk to it."""

    url: str
    service: Service
    backend: Backend
    http: aiohttp.ClientSession

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @cached_property
    def openai(self) -> AsyncOpenAI:
        """The official client; made when it is first used, for that takes longer than a test."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def close(self) -> None:
        if "openai" in vars(self):
            await self.openai.close()

    async def post(self, path: str, body: object, **headers: str) -> tuple[int, dict[str, object]]:
        """Post JSON and return status and JSON."""
        async with self.http.post(self.url + path, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def get(self, path: str) -> tuple[int, dict[str, object]]:
        """Get JSON and return status and JSON."""
        async with self.http.get(self.url + path) as response:
            return response.status, await response.json()

    async def counters(self, **headers: str) -> dict[str, float]:
        """Scrape /metrics: every sample by its name and labels."""
        async with self.http.get(self.url + "/metrics", headers=headers) as response:
            lines = (await response.text()).splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


def echo_backend(folder: Path, pieces: list[bytes] | None = None, **options: float) -> EchoBackend:
    """Return an echo of a tokenizer in which each of `pieces` is one token."""
    write_piece_tokenizer(folder, pieces or [b"one", b" two", b" three"])
    return EchoBackend(folder, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def running_gateway(
    backend: Backend,
    *,
    metrics: Metrics | None = None,
    make_tenancy: Callable[[GatewayConfig, Metrics], Tenancy] | None = None,
    read_settings: Callable[[], Settings] | None = None,
    prompts_db: PromptsDb | None = None,
    wall_clock: Callable[[], float] = time.time,
    **settings: ConfigValue,
) -> AsyncIterator[Gateway]:
    """Serve `backend` on a free port as the model `tiny`; end it in good order."""
    config = GatewayConfig(port=0, served_model_name=MODEL, **settings)  # type: ignore[arg-type]
    metrics = metrics or Metrics()
    service = Service(
        backend,
        config,
        metrics,
        new_id=lambda: uuid.uuid4().hex,
        clock=time.perf_counter,
        wall_clock=wall_clock,
        prompts_db=prompts_db,
        tenancy=None if make_tenancy is None else make_tenancy(config, metrics),
        read_settings=read_settings,
    )
    await service.start()
    runner = await make_runner(service)
    listener = await open_listener(runner, config)
    try:
        async with aiohttp.ClientSession() as http:
            gateway = Gateway(url_of(listener), service, backend, http)
            yield gateway
            await gateway.close()
    finally:
        listener.close()
        await service.close()
        await runner.cleanup()
