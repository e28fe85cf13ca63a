"""A gateway with keys, for two tenants and an operator, and clocks that a test turns."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI

from gateway.backends.base import Backend
from gateway.config import AdminConfig, GatewayConfig, Settings
from gateway.keys import hash_of, new_key
from gateway.metrics import Metrics
from gateway.prompts_db import PromptsDb
from gateway.tenancy import Tenancy
from gateway.tenants import TenantConfig
from gateway.usage_db import UsageDb
from tests.support.gateways import Gateway, running_gateway

ACME, BETA, ADMIN = (new_key(os.urandom) for _ in range(3))
NOON = 1_796_040_000.0  # 2026-11-30T12:00:00Z: the next day is another month
DAY_SECONDS = 86_400.0


class HandClock:
    """Time as a test has it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def keyed_settings(
    server: GatewayConfig, acme: TenantConfig | None = None, beta: TenantConfig | None = None
) -> Settings:
    """Return settings with our three keys."""
    return Settings(
        server=server,
        tenants={"acme": keyed(acme, ACME), "beta": keyed(beta, BETA)},
        admin=AdminConfig(key_hashes=(hash_of(ADMIN),)),
    )


def keyed(config: TenantConfig | None, key: str) -> TenantConfig:
    config = config or TenantConfig()
    values = {name: getattr(config, name) for name in config.__struct_fields__}
    return TenantConfig(**values | {"key_hashes": (hash_of(key),)})


@dataclass
class Keyed:
    """A gateway with keys, and what a test turns."""

    gateway: Gateway
    clock: HandClock
    wall_clock: HandClock
    clients: list[AsyncOpenAI] = field(default_factory=list)

    def openai(self, key: str, max_retries: int = 0) -> AsyncOpenAI:
        """Return the official client with a key."""
        client = AsyncOpenAI(
            base_url=f"{self.gateway.url}/v1", api_key=key, max_retries=max_retries
        )
        self.clients.append(client)
        return client

    @property
    def tenancy(self) -> Tenancy:
        return self.gateway.service.tenancy


@asynccontextmanager
async def keyed_gateway(
    backend: Backend,
    acme: TenantConfig | None = None,
    *,
    beta: TenantConfig | None = None,
    usage_db: UsageDb | None = None,
    read_settings: Callable[[], Settings] | None = None,
    prompts_db: PromptsDb | None = None,
    **settings: Any,
) -> AsyncIterator[Keyed]:
    """Serve `backend` to whoever has one of our keys."""
    clock, wall_clock = HandClock(), HandClock(NOON)

    def make(config: GatewayConfig, metrics: Metrics) -> Tenancy:
        return Tenancy(
            keyed_settings(config, acme, beta),
            metrics,
            usage_db or UsageDb.open(None),
            clock=clock,
            wall_clock=wall_clock,
        )

    async with running_gateway(
        backend,
        metrics=None,
        make_tenancy=make,
        read_settings=read_settings,
        prompts_db=prompts_db,
        wall_clock=wall_clock,
        **settings,
    ) as gateway:
        keyed = Keyed(gateway, clock, wall_clock)
        yield keyed
        for client in keyed.clients:
            await client.close()
