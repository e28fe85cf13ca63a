"""Who may use which route."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from gateway.access import credential_of
from gateway.app import make_app
from gateway.config import GatewayConfig
from tests.support.bodies import CHAT, CHAT_BODY, TEXT, TEXT_BODY, error_of
from tests.support.gateways import MODEL, Gateway, echo_backend
from tests.support.tenancy import (
    ACME,
    ADMIN,
    BETA,
    Keyed,
    bearer,
    keyed_gateway,
    keyed_settings,
)

OPEN = {"/health", "/ready"}
ADMINS = ("/metrics", "/admin/tenants", "/admin/usage", "/admin/reload")


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed_gateway(echo_backend(tmp_path)) as running:
        yield running


async def status_of(gateway: Gateway, method: str, path: str, **headers: str) -> int:
    async with gateway.http.request(method, gateway.url + path, headers=headers) as reply:
        return reply.status


def routes(app: web.Application) -> set[tuple[str, str]]:
    return {
        (route.method, re.sub(r"\{[^}]*\}", "x", route.resource.canonical))
        for route in app.router.routes()
        if route.resource is not None
    }


async def test_every_route_but_two_needs_a_credential(keyed: Keyed) -> None:
    """Whatever is routed answers 401 without a key and with a wrong one, and says how to ask."""
    app = make_app(keyed.gateway.service)
    found = routes(app)
    assert {path for _, path in found} >= {*OPEN, *ADMINS, CHAT, TEXT, "/v1/models"}
    for method, path in found:
        if path in OPEN:
            assert await status_of(keyed.gateway, method, path) == 200
            continue
        for headers in ({}, bearer("pc-wrong"), {"Authorization": f"Basic {ACME}"}):
            assert await status_of(keyed.gateway, method, path, **headers) == 401, path
    assert await status_of(keyed.gateway, "GET", "/nowhere") == 401
    assert await status_of(keyed.gateway, "DELETE", CHAT) == 401


async def test_admin_routes_are_the_admins_alone(keyed: Keyed) -> None:
    """A tenant's key there is 403, and so is the admin's key where a tenant's is needed."""
    for path in ADMINS:
        method = "POST" if path.endswith("reload") else "GET"
        assert await status_of(keyed.gateway, method, path, **bearer(ACME)) == 403
        assert await status_of(keyed.gateway, method, path, **bearer(ADMIN)) == 200
    status, reply = await keyed.gateway.post(CHAT, CHAT_BODY, **bearer(ADMIN))
    assert (status, error_of(reply)["code"]) == (403, "access_refused")
    assert await status_of(keyed.gateway, "GET", "/v1/models", **bearer(ADMIN)) == 403


@pytest.mark.parametrize(
    "path", ["/%61dmin/tenants", "/admin//tenants", "//admin/tenants", "/v1/../admin/tenants"]
)
async def test_no_spelling_of_an_admin_route_is_a_tenants(keyed: Keyed, path: str) -> None:
    """However a path is written, a tenant gets nothing of the operator's."""
    assert await status_of(keyed.gateway, "GET", path, **bearer(ACME)) in (403, 404)


async def test_the_official_client_sees_what_it_knows(keyed: Keyed) -> None:
    """A good key answers; a wrong one raises AuthenticationError, the admin's PermissionDenied."""
    assert [card.id async for card in keyed.openai(ACME).models.list()] == [MODEL]
    with pytest.raises(openai.AuthenticationError) as wrong:
        await keyed.openai("pc-wrong").models.list()
    assert wrong.value.code == "invalid_api_key"
    assert wrong.value.response.headers["WWW-Authenticate"] == "Bearer"
    with pytest.raises(openai.PermissionDeniedError):
        await keyed.openai(ADMIN).models.list()


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/messages", "authentication_error"), ("/v1beta/models/tiny:generateContent", None)],
)
async def test_refusals_are_told_in_the_dialect(keyed: Keyed, path: str, kind: str | None) -> None:
    """A 401 on Anthropic's and Google's routes has the form that their clients read."""
    status, reply = await keyed.gateway.post(path, {}, **{"x-api-key": "pc-wrong"})
    error: Any = reply["error"]
    assert status == 401
    assert error["type" if kind else "status"] == (kind or "UNAUTHENTICATED")


async def test_tenants_share_nothing(keyed: Keyed) -> None:
    """The second tenant's same prompt and salt find nothing of the first's; its own again do."""
    cached = []
    for key in (ACME, BETA, ACME, BETA):
        body = {**TEXT_BODY, "cache_salt": "s1"}
        _, reply = await keyed.gateway.post(TEXT, body, **bearer(key))
        usage: Any = reply["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[:2] == [0, 0]
    assert min(cached[2:]) > 0


async def test_a_refusal_comes_before_the_body(keyed: Keyed) -> None:
    """A client that waits for 100-continue with a bad key is told 401 and sends nothing."""
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", keyed.gateway.port)
    writer.write(head % CHAT.encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
    writer.close()


async def test_with_keys_any_host_may_be_named(keyed: Keyed) -> None:
    """A key vouches for the request, so the Host header is not looked at."""
    headers = {**bearer(ACME), "Host": "api.example.org"}
    assert await status_of(keyed.gateway, "GET", "/v1/models", **headers) == 200


async def test_without_keys_admin_routes_are_not_for_other_pages(gateway: Gateway) -> None:
    """A browser's request for a page of another host gets no admin route; our own page's does."""
    for origin, status in (
        (None, 200),
        ("http://127.0.0.1:3000", 200),
        ("http://localhost", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://localhost.evil.example", 403),
    ):
        headers = {} if origin is None else {"Origin": origin}
        assert await status_of(gateway, "POST", "/admin/reload", **headers) == status, origin


@pytest.mark.parametrize(
    ("path", "headers", "key"),
    [
        ("/v1/models", {}, None),
        ("/v1/models", {"Authorization": "Bearer one"}, "one"),
        ("/v1/models", {"Authorization": "bearer  one "}, "one"),
        ("/v1/models", {"Authorization": "Basic one"}, None),
        ("/v1/messages", {"x-api-key": "two"}, "two"),
        ("/v1beta/models", {"x-goog-api-key": "three"}, "three"),
        ("/v1beta/models?key=four", {}, "four"),
        ("/v1/models?key=four", {}, None),
        ("/v1/models", {"Authorization": "Bearer one", "x-api-key": "two"}, "one"),
        ("/v1/models", {"x-api-key": "two", "x-goog-api-key": "three"}, "two"),
    ],
)
def test_keys_are_found_where_clients_put_them(
    path: str, headers: dict[str, str], key: str | None
) -> None:
    """Each dialect's header, and Google's query parameter on Google's routes alone."""
    assert credential_of(make_mocked_request("GET", path, headers)) == key


async def test_keys_are_in_no_log(keyed: Keyed, caplog: pytest.LogCaptureFixture) -> None:
    """Whichever way a key comes and however the request ends, no log line of anybody has it."""
    caplog.set_level(logging.DEBUG)
    for key in (ACME, ADMIN, "pc-wrong-one"):
        for headers in (bearer(key), {"x-api-key": key}, {"x-goog-api-key": key}):
            await keyed.gateway.post(CHAT, CHAT_BODY, **headers)
            await status_of(keyed.gateway, "GET", f"/v1beta/models?key={key}", **headers)
            await send_broken(keyed.gateway, headers)
    told = "\n".join(f"{record.getMessage()} {record.exc_text}" for record in caplog.records)
    assert "POST /v1/chat/completions status=200" in told
    assert "tenant=acme" in told
    for key in (ACME, ADMIN, "pc-wrong-one"):
        assert key not in told


async def send_broken(gateway: Gateway, headers: dict[str, str]) -> None:
    """Send a head that is no HTTP, with these headers in it."""
    lines = [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(["GET /v1/models HTTP/1.1", *lines, *lines[:1], "no header", "", ""])
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head.encode())
    assert (await reader.readline()).endswith(b" 400 Bad Request\r\n")
    writer.close()


async def test_a_log_line_cannot_be_forged(keyed: Keyed, caplog: pytest.LogCaptureFixture) -> None:
    """Line breaks in a path, a method's name or an id stay out of the log."""
    caplog.set_level(logging.DEBUG, logger="gateway")
    path = "/v1/models/x%0a2026-12-01%20INFO%20POST%20/admin/reload%20status=200"
    await status_of(keyed.gateway, "GET", path, **bearer(ACME), **{"X-Request-Id": "a%0ab"})
    lines = [record.getMessage() for record in caplog.records if "requests" in record.name]
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert "reload" not in lines[0]


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer " + "x" * 100_000},
        {f"x-{number}": "1" for number in range(1000)},
    ],
)
async def test_the_size_of_heads_is_limited(keyed: Keyed, headers: dict[str, str]) -> None:
    """One huge header, or a thousand small ones, are refused as no HTTP before anything is done."""
    assert await status_of(keyed.gateway, "GET", "/v1/models", **headers) == 400


def test_no_host_is_bound_without_keys_only() -> None:
    """With keys configured any address may be bound."""
    server = GatewayConfig(host="0.0.0.0")  # noqa: S104
    assert keyed_settings(server).server.host == "0.0.0.0"  # noqa: S104
