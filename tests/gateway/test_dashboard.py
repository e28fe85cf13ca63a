"""The operator's page: who may see it, what its data are, and that all of it is our own."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.api.dashboard import TRENDS
from gateway.app import make_app
from tests.support.bodies import TEXT
from tests.support.gateways import MODEL, Gateway, echo_backend
from tests.support.tenancy import ACME, ADMIN, Keyed, bearer, keyed_gateway

PAGE, DATA = "/dashboard", "/admin/dashboard"
FILES = {
    path.name: path.read_text(encoding="utf-8")
    for path in files("gateway").joinpath("dashboard").iterdir()
}
SECRET = "one two three"


def basic(key: str, user: str = "operator") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{key}".encode()).decode()}


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed_gateway(echo_backend(tmp_path)) as running:
        yield running


async def get(keyed: Keyed, path: str, headers: dict[str, str]) -> aiohttp.ClientResponse:
    async with keyed.gateway.http.get(keyed.gateway.url + path, headers=headers) as reply:
        await reply.read()
        return reply


@pytest.mark.parametrize("path", [PAGE, DATA, f"{PAGE}/app.js"])
async def test_the_page_is_the_operators_alone(keyed: Keyed, path: str) -> None:
    """A browser is asked for a password, which is the admin's key; a tenant's is refused."""
    refused = await get(keyed, path, {})
    assert refused.status == 401
    assert refused.headers["WWW-Authenticate"].startswith("Basic realm=")
    assert (await get(keyed, path, basic("pc-wrong"))).status == 401
    assert (await get(keyed, path, basic(ACME))).status == 403
    assert (await get(keyed, path, bearer(ACME))).status == 403
    for headers in (basic(ADMIN), basic(ADMIN, user=""), bearer(ADMIN)):
        assert (await get(keyed, path, headers)).status == 200


async def test_a_browsers_password_opens_nothing_else(keyed: Keyed) -> None:
    """What a browser sends by itself changes nothing and reads no other route."""
    for path in ("/admin/tenants", "/metrics", "/v1/models", "/openapi.json"):
        assert (await get(keyed, path, basic(ADMIN))).status == 401
    status, _ = await keyed.gateway.post("/admin/reload", {}, **basic(ADMIN))
    assert status == 401


@pytest.mark.parametrize("text", ["", "!", "bm9jb2xvbg==", "Og==", "//79"])
async def test_what_is_no_password_is_none(keyed: Keyed, text: str) -> None:
    """Broken credentials are 401 like missing ones."""
    reply = await get(keyed, PAGE, {"Authorization": f"Basic {text}"})
    assert reply.status == 401


async def test_the_page_may_load_nothing_from_elsewhere(gateway: Gateway) -> None:
    """Every file of the page comes with a policy that allows this server's own files alone."""
    for path in (PAGE, *(f"{PAGE}/{name}" for name in FILES if name != "index.html")):
        async with gateway.http.get(gateway.url + path) as reply:
            policy = reply.headers["Content-Security-Policy"]
            assert reply.status == 200, path
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy
            assert reply.headers["X-Content-Type-Options"] == "nosniff"


def test_no_file_names_another_host() -> None:
    """There is no address in the page's files but that of SVG's own namespace."""
    for name, text in FILES.items():
        found = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w./]*", text))
        assert found <= {"http://www.w3.org/2000/svg"}, name
    assert not re.search(r"<script(?![^>]*\bsrc=)|\bon\w+=|style=", FILES["index.html"])


@pytest.mark.parametrize("name", ["../app.py", "%2e%2e%2fapp.py", "index.html", "nothing.js"])
async def test_only_the_pages_files_are_given(gateway: Gateway, name: str) -> None:
    """No other file can be named."""
    async with gateway.http.get(f"{gateway.url}{PAGE}/{name}") as reply:
        assert reply.status == 404


async def test_the_data_show_what_was_asked(keyed: Keyed) -> None:
    """Counters, tenants and trees are there, and nothing of what was said."""
    for _ in range(2):
        body = {"model": MODEL, "prompt": SECRET, "cache_salt": "c2FsdA=="}
        status, _ = await keyed.gateway.post(TEXT, body, **bearer(ACME))
        assert status == 200
    async with keyed.gateway.http.get(keyed.gateway.url + DATA, headers=bearer(ADMIN)) as reply:
        assert reply.headers["Cache-Control"] == "no-store"
        text, shown = await reply.text(), await reply.json()
    assert shown["model"] == MODEL
    assert shown["engine"]["prompt_tokens_total"] == 6
    assert shown["engine"]["cached_tokens_total"] == 2
    (tenant,) = shown["index"]["tenants"]
    assert (tenant["tenant"], tenant["requests_total"]) == ("acme", 2)
    (tree,) = shown["index"]["trees"]
    assert (tree["has_salt"], tree["nodes"][0]["n_tokens"]) == (True, 3)
    for secret in ("one", "two", "c2FsdA", ACME, ADMIN):
        assert secret not in text


async def test_a_fresh_server_has_data(gateway: Gateway) -> None:
    """Before any traffic all is zero or empty, and the JSON has no NaN."""
    status, shown = await gateway.get(DATA)
    found: Any = shown
    assert (status, found["trends"], found["index"]["trees"]) == (200, [], [])
    assert found["engine"]["prompt_tokens_total"] == 0


async def test_the_data_have_the_latest_intervals(gateway: Gateway) -> None:
    """What was sampled is shown, with the times to first token."""
    await gateway.post(TEXT, {"model": MODEL, "prompt": "one two"})
    app = make_app(gateway.service)
    app[TRENDS].sample()
    (interval,) = app[TRENDS].intervals
    assert (interval.first_tokens, interval.prompt_tokens) == (1, 0)  # counted before it began
    assert interval.first_token_median_seconds is not None


@pytest.mark.parametrize("nodes", ["-1", "20001", "many", ""])
async def test_the_number_of_nodes_is_checked(gateway: Gateway, nodes: str) -> None:
    """Outside of its bounds it is a 400 that names it."""
    status, reply = await gateway.get(f"{DATA}?nodes={nodes}")
    error: Any = reply["error"]
    assert (status, error["param"]) == (400, "nodes")


async def test_no_more_nodes_are_shown_than_asked_for(gateway: Gateway) -> None:
    """With none asked for, the rest is there and says that it is not all."""
    await gateway.post(TEXT, {"model": MODEL, "prompt": "one two three"})
    _, shown = await gateway.get(f"{DATA}?nodes=0")
    index: Any = shown["index"]
    assert (index["trees"], index["is_complete"]) == ([], False)


def colours(css: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the colours of the light scheme and of the dark one."""
    light, dark = css.partition("@media (prefers-color-scheme: dark)")[::2]
    found = [dict(re.findall(r"--([\w-]+): (#\w{6});", part)) for part in (light, dark)]
    return found[0], found[0] | found[1]


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_texts_can_be_read(scheme: int) -> None:
    """Each text has a contrast of at least 4.5 to what it stands on, each line one of 3."""
    found = colours(FILES["style.css"])[scheme]
    for text in ("text", "quiet", "green", "bad"):
        for ground in ("panel", "page"):
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    for bar in [*(f"r{n}" for n in range(6)), *(f"t{n}" for n in range(9))]:
        assert contrast(found["bar-text"], found[bar]) >= 4.5, bar
    for line in ("blue", "orange"):
        assert contrast(found[line], found["panel"]) >= 3, line
