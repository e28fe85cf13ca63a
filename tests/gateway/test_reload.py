"""Reading tenants and limits again, whole or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.config import GatewayConfig, Settings
from gateway.errors import ChangeRefusedError
from gateway.keys import hash_of
from gateway.tenants import TenantConfig, TenantLimits
from prefixcache.config import EngineConfig
from prefixcache.control import TenantQuota
from prefixcache.errors import ConfigError
from prefixcache.types import FinishReason
from tests.gateway.test_tenants import QuotaBackend
from tests.support.bodies import CHAT, CHAT_BODY, error_of
from tests.support.gateways import MODEL, echo_backend
from tests.support.scripted import ScriptedBackend
from tests.support.tenancy import ACME, ADMIN, BETA, Keyed, bearer, keyed_gateway, keyed_settings
from tests.support.tokenizers import write_piece_tokenizer
from tests.support.waiting import until

RUNNING = GatewayConfig(port=0, served_model_name=MODEL)


class File:
    """What the configuration says when it is read."""

    def __init__(self) -> None:
        self.settings: Settings | ConfigError = keyed_settings(RUNNING)

    def read(self) -> Settings:
        if isinstance(self.settings, ConfigError):
            raise self.settings
        return self.settings


@asynccontextmanager
async def reloading(
    backend: ScriptedBackend | Any, acme: TenantConfig | None = None
) -> AsyncIterator[tuple[Keyed, File]]:
    file = File()
    async with keyed_gateway(backend, acme, read_settings=file.read) as keyed:
        yield keyed, file


async def reload(keyed: Keyed) -> tuple[int, dict[str, Any]]:
    return await keyed.gateway.post("/admin/reload", None, **bearer(ADMIN))


async def chat(keyed: Keyed, key: str) -> int:
    return (await keyed.gateway.post(CHAT, CHAT_BODY, **bearer(key)))[0]


async def test_keys_and_limits_are_taken_up(tmp_path: Path) -> None:
    """After a reload a tenant that is gone is unknown, and others have their new limits."""
    async with reloading(echo_backend(tmp_path)) as (keyed, file):
        assert [await chat(keyed, key) for key in (ACME, ACME, BETA)] == [200] * 3
        limited = TenantConfig(key_hashes=(hash_of(ACME),), requests_per_minute=1)
        admin = keyed_settings(RUNNING).admin
        file.settings = Settings(server=RUNNING, tenants={"acme": limited}, admin=admin)
        assert await reload(keyed) == (200, {"tenants": ["acme"], "need_restart": []})
        assert [await chat(keyed, key) for key in (ACME, ACME, BETA)] == [200, 429, 401]


async def test_what_needs_a_restart_is_named_and_left(tmp_path: Path) -> None:
    """Changed settings of server and engine are told; the running ones stay."""
    async with reloading(echo_backend(tmp_path)) as (keyed, file):
        changed = keyed_settings(GatewayConfig(port=0, served_model_name=MODEL, max_choices=1))
        file.settings = Settings(
            server=changed.server,
            engine=EngineConfig(threads=3),
            tenants=changed.tenants,
            admin=changed.admin,
        )
        for _ in range(2):
            _, reply = await reload(keyed)
            assert reply["need_restart"] == ["server.max_choices", "engine.threads"]
        body = {**CHAT_BODY, "n": 2}
        assert (await keyed.gateway.post(CHAT, body, **bearer(ACME)))[0] == 200


async def test_a_wrong_configuration_changes_nothing(tmp_path: Path) -> None:
    """It is a 400 with the reason, and everybody is served as before."""
    async with reloading(echo_backend(tmp_path)) as (keyed, file):
        file.settings = ConfigError("port", -1, "must be from 0 to 65535")
        status, reply = await reload(keyed)
        assert (status, error_of(reply)["code"]) == (400, "change_refused")
        assert "port = -1" in error_of(reply)["message"]
        assert [await chat(keyed, key) for key in (ACME, BETA)] == [200, 200]


async def test_an_address_that_others_reach_keeps_its_keys(tmp_path: Path) -> None:
    """Where the running host is no loopback address, a configuration without keys is refused."""
    async with reloading(echo_backend(tmp_path)) as (keyed, file):
        tenancy = keyed.tenancy
        tenancy.settings = keyed_settings(GatewayConfig(host="0.0.0.0"))  # noqa: S104
        file.settings = Settings()
        status, reply = await reload(keyed)
        assert status == 400
        assert "no API keys" in error_of(reply)["message"]
        assert not tenancy.roster.is_open


async def test_a_running_stream_goes_on(tmp_path: Path) -> None:
    """A tenant that is taken away gets what it has begun, and it is on its account."""
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = ScriptedBackend(tmp_path, [["x", None]])
    async with reloading(backend) as (keyed, file):
        stream = await keyed.openai(ACME).chat.completions.create(**CHAT_BODY, stream=True)
        await anext(aiter(stream))
        settings = keyed_settings(RUNNING)
        tenants = {"beta": settings.tenants["beta"]}
        file.settings = Settings(server=RUNNING, tenants=tenants, admin=settings.admin)
        await reload(keyed)
        assert (backend.n_open, await chat(keyed, ACME)) == (1, 401)
        await stream.close()
        await until(lambda: backend.n_open == 0)
        rows = keyed.tenancy.usage_db.rows(first_day="2026-11-30", last_day="2026-11-30")
        assert [row.key.tenant for row in rows] == ["acme"]


async def test_changed_quotas_go_to_the_engine_first(tmp_path: Path) -> None:
    """They are set when they change; what the engine refuses leaves all as it was."""
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = Stubborn(tmp_path, [["x", FinishReason.STOP]])
    async with reloading(backend) as (keyed, file):
        await reload(keyed)
        assert backend.quotas == []
        big = TenantQuota(max_tokens=10**9)
        file.settings = keyed_settings(RUNNING, TenantConfig(kv=big, requests_per_minute=1))
        status, reply = await reload(keyed)
        assert (status, error_of(reply)["message"]) == (400, "too much")
        assert keyed.tenancy.roster.tenants["acme"].limits == TenantLimits()
        small = TenantQuota(max_tokens=64)
        file.settings = keyed_settings(RUNNING, TenantConfig(kv=small))
        assert (await reload(keyed))[0] == 200
        assert backend.quotas == [{"acme": small}]
        file.settings = keyed_settings(RUNNING)
        assert (await reload(keyed))[0] == 200
        assert backend.quotas == [{"acme": small}, {}]


class Stubborn(QuotaBackend):
    """Takes no quota that is large."""

    async def set_quotas(self, quotas: dict[str, TenantQuota]) -> None:
        if any((quota.max_tokens or 0) > 10**6 for quota in quotas.values()):
            raise ChangeRefusedError("too much")
        await super().set_quotas(quotas)


async def test_reloads_take_turns(tmp_path: Path) -> None:
    """Many at once leave the state of the last one that was read."""
    async with reloading(echo_backend(tmp_path)) as (keyed, _):
        replies = await asyncio.gather(*(reload(keyed) for _ in range(5)))
        assert {status for status, _ in replies} == {200}


async def test_a_refused_reload_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever sends a signal reads there why nothing has changed."""
    caplog.set_level(logging.INFO, logger="gateway")
    async with reloading(echo_backend(tmp_path)) as (keyed, file):
        file.settings = ConfigError("port", -1, "must be from 0 to 65535")
        with pytest.raises(ChangeRefusedError):
            await keyed.gateway.service.reloader.reload()
    assert any("port = -1" in record.getMessage() for record in caplog.records)
