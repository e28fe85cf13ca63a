"""Requests that were meant for another name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.hosts import names_loopback
from tests.support.gateways import MODEL, echo_backend, running_gateway

LOOPBACK = [
    "localhost",
    "LocalHost:8000",
    "127.0.0.1",
    "127.0.0.1:80",
    "127.255.3.4:9",
    "[::1]",
    "[::1]:8000",
    "::1",
    "localhost:",
]
ELSEWHERE = [
    "",
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example:127.0.0.1",
    "localhost:8000:evil.example",
    "localhost@evil.example",
    "10.0.0.1",
    "0.0.0.0",  # noqa: S104
    "2130706433",
    "[::2]:8000",
    "[localhost",
    "::1]",
    "[]:80",
    "\uff11\uff12\uff17.0.0.1",
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_names_of_this_machine(host: str) -> None:
    """localhost and loopback addresses name this machine, with a port or without."""
    assert names_loopback(host)


@pytest.mark.parametrize("host", ELSEWHERE)
def test_names_of_others(host: str) -> None:
    """Whatever only looks like a loopback name does not."""
    assert not names_loopback(host)


async def test_a_page_from_elsewhere_gets_nothing(tmp_path: Path) -> None:
    """A request under another name is a 403 in the envelope, on every route but /health."""
    body = {"model": MODEL, "prompt": "one"}
    async with running_gateway(echo_backend(tmp_path)) as gateway:
        for method, path in (
            ("POST", "/v1/completions"),
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("GET", "/ready"),
            ("GET", "/metrics"),
            ("GET", "/nowhere"),
        ):
            async with gateway.http.request(
                method, gateway.url + path, json=body, headers={"Host": "evil.example:80"}
            ) as reply:
                error: Any = (await reply.json())["error"]
                assert (reply.status, error["param"]) == (403, "Host")
                assert "'evil.example:80'" in error["message"]
        headers = {"Host": "evil.example"}
        async with gateway.http.get(gateway.url + "/health", headers=headers) as reply:
            assert reply.status == 200
        for host in LOOPBACK[:2]:
            assert (await gateway.post("/v1/completions", body, Host=host))[0] == 200
