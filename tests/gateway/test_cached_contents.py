"""Gemini's explicit caches: beginnings that are read in, built upon, changed and forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.genai import errors, types

from gateway.api.gemini_models import PromptFields
from gateway.backends.echo import EchoBackend
from gateway.cached_contents import CachedContent, CachedContents
from gateway.errors import CachedContentNotFoundError, TooManyCachedContentsError
from prefixcache.types import FinishReason
from tests.gateway.test_gemini import BODY, GENERATE, TOOLS, google_client, shown, turn
from tests.support.anthropics import use_template
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import write_chat_tokenizer

PATH = "/v1beta/cachedContents"
LONG = "hello world alpha " * 12
CREATE: dict[str, Any] = {
    "model": f"models/{MODEL}",
    "systemInstruction": turn(LONG),
    "contents": [turn("one")],
    "displayName": "manual",
    "ttl": "300s",
}


@pytest.fixture
async def chat(tmp_path: Path) -> AsyncIterator[Gateway]:
    write_chat_tokenizer(tmp_path)
    use_template(tmp_path)
    async with running_gateway(EchoBackend(tmp_path), max_cached_contents=3) as running:
        yield running


async def create(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    status, made = await gateway.post(PATH, CREATE | fields)
    assert status == 200, made
    return made


async def ask(gateway: Gateway, method: str, path: str, **fields: Any) -> tuple[int, Any]:
    async with gateway.http.request(method, f"{gateway.url}{path}", **fields) as response:
        return response.status, await response.json()


async def test_the_official_client_keeps_and_uses_one(chat: Gateway) -> None:
    """Create, use, list, get, change and delete through the official client."""
    config = {"system_instruction": LONG, "contents": [turn("one")], "ttl": "60s",
              "display_name": "manual"}  # fmt: skip
    async with google_client(chat) as client:
        made = await client.caches.create(model=MODEL, config=config)
        assert made.name.startswith("cachedContents/")
        reply = await client.models.generate_content(
            model=MODEL,
            contents="two",
            config=types.GenerateContentConfig(cached_content=made.name, max_output_tokens=900),
        )
        assert reply.text == f"system\n{LONG}\nuser\none\nuser\ntwo\nassistant\n".replace(
            "\n\n", "\n"
        )
        usage = reply.usage_metadata
        assert usage.cached_content_token_count >= made.usage_metadata.total_token_count > 50
        assert [c.name async for c in await client.caches.list()] == [made.name]
        assert (await client.caches.get(name=made.name)).display_name == "manual"
        longer = await client.caches.update(name=made.name, config={"ttl": "3600s"})
        assert longer.expire_time - made.expire_time > timedelta(minutes=50)
        await client.caches.delete(name=made.name)
        with pytest.raises(errors.ClientError) as caught:
            await client.caches.get(name=made.name)
    assert caught.value.code == 404


async def test_the_beginning_is_read_in_and_retained(tmp_path: Path) -> None:
    """The engine reads just what every continuation shares, and keeps it for its time."""
    write_chat_tokenizer(tmp_path)
    backend = ScriptedBackend(tmp_path, [[FinishReason.LENGTH], ["a", FinishReason.STOP]] * 2)
    backend.max_model_tokens = 2000
    async with running_gateway(backend) as gateway:
        made = await create(gateway)
        reading = backend.requests[0]
        n_tokens = made["usageMetadata"]["totalTokenCount"]
        assert reading.sampling.max_tokens == 0
        assert len(reading.token_ids) == 4 * n_tokens
        (kept,) = reading.retain
        assert (kept.n_tokens, kept.seconds) == (n_tokens, 300.0)
        await gateway.post(GENERATE, BODY | {"cachedContent": made["name"]})
        building = backend.requests[1]
        assert building.token_ids.startswith(reading.token_ids)
        assert building.retain[0].n_tokens == n_tokens
        assert 0 < building.retain[0].seconds <= 300
        longer = {"params": {"updateMask": "ttl"}, "json": {"ttl": "7200s"}}
        status, _ = await ask(gateway, "PATCH", f"/v1beta/{made['name']}", **longer)
        assert status == 200
        assert 7100 < backend.requests[2].retain[0].seconds <= 7200


async def test_tools_belong_to_it(chat: Gateway) -> None:
    """What is kept has its tools; they are shown, and must not be given again."""
    made = await create(chat, tools=TOOLS, toolConfig={"functionCallingConfig": {"mode": "NONE"}})
    text = await shown(chat, cachedContent=made["name"])
    assert text.startswith("<tools>")
    beside: list[dict[str, Any]] = [
        {"tools": TOOLS},
        {"systemInstruction": turn("x")},
        {"toolConfig": {}},
    ]
    for field in beside:
        status, reply = await chat.post(GENERATE, BODY | {"cachedContent": made["name"]} | field)
        error: Any = reply["error"]
        assert status == 400
        assert "cachedContent" in error["message"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"ttl": "3.5s"}, 200),
        ({"ttl": None}, 200),
        ({"ttl": "5m"}, 400),
        ({"ttl": "0s"}, 400),
        ({"ttl": "-3s"}, 400),
        ({"ttl": "999999999s"}, 400),
        ({"ttl": None, "expireTime": "2999-01-01T00:00:00Z"}, 400),
        ({"ttl": None, "expire_time": "2001-01-01T00:00:00Z"}, 400),
        ({"ttl": None, "expireTime": "tomorrow"}, 400),
        ({"expireTime": "2999-01-01T00:00:00Z"}, 400),
        ({"model": "models/other"}, 404),
        ({"model": None}, 400),
        ({"contents": [], "systemInstruction": None}, 400),
        ({"contents": []}, 200),
        ({"contents": [{"parts": [{"inlineData": {}}]}]}, 400),
    ],
)
async def test_what_can_be_kept(chat: Gateway, fields: dict[str, Any], status: int) -> None:
    """A time in the future and something to read are needed; wrong fields are a 400."""
    found, reply = await chat.post(PATH, CREATE | fields)
    assert found == status, reply


async def test_an_expiry_time_can_be_given(chat: Gateway) -> None:
    """expireTime is taken as it is, with its offset."""
    moment = (datetime.now(UTC) + timedelta(hours=2)).replace(microsecond=0)
    made = await create(chat, ttl=None, expireTime=moment.isoformat())
    assert datetime.fromisoformat(made["expireTime"]) == moment
    assert made["createTime"] == made["updateTime"]
    assert made["model"] == f"models/{MODEL}"


async def test_only_the_expiry_can_change(chat: Gateway) -> None:
    """Any other field of the mask or the body is refused, and changes nothing."""
    made = await create(chat)
    path = f"/v1beta/{made['name']}"
    for mask, body in (
        ("displayName", {"displayName": "x"}),
        ("ttl,contents", {"ttl": "10s"}),
        ("", {"displayName": "x", "ttl": "10s"}),
        ("ttl", {}),
        ("", {}),
    ):
        status, _ = await ask(chat, "PATCH", path, params={"updateMask": mask}, json=body)
        assert status == 400
    assert (await ask(chat, "GET", path))[1] == made
    assert (await ask(chat, "PATCH", f"{PATH}/none", json={"ttl": "9s"}))[0] == 404


async def test_pages_hold_each_once(chat: Gateway) -> None:
    """Page by page, all that is kept comes once, in the order it was made."""
    names = [(await create(chat))["name"] for _ in range(3)]
    found, token = [], ""
    for _ in range(3):
        query = {"pageSize": "2"} | ({"pageToken": token} if token else {})
        _, page = await ask(chat, "GET", PATH, params=query)
        found += [cached["name"] for cached in page["cachedContents"]]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert found == names
    assert (await ask(chat, "GET", PATH, params={"pageSize": "x"}))[0] == 400


async def test_a_tenant_keeps_a_bounded_number(chat: Gateway) -> None:
    """Over the limit nothing is made, until one is deleted."""
    made = [await create(chat) for _ in range(3)]
    status, reply = await chat.post(PATH, CREATE)
    error: Any = reply["error"]
    assert (status, error["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert (await ask(chat, "DELETE", f"/v1beta/{made[0]['name']}"))[0] == 200
    assert (await ask(chat, "DELETE", f"/v1beta/{made[0]['name']}"))[0] == 404
    await create(chat)


def cached(cached_id: str, expires: float) -> CachedContent:
    return CachedContent(
        id=cached_id, model=MODEL, display_name=None, fields=PromptFields(), token_ids=bytes(4),
        created=0.0, updated=0.0, expires=expires,
    )  # fmt: skip


def test_what_has_expired_is_gone() -> None:
    """From its time on it is not found, not listed, and takes no room."""
    now = [0.0]
    caches = CachedContents(max_per_tenant=1, now=lambda: now[0])
    caches.add("a", cached("x", 10.0))
    with pytest.raises(TooManyCachedContentsError):
        caches.add("a", cached("y", 10.0))
    now[0] = 10.0
    with pytest.raises(CachedContentNotFoundError):
        caches.get("a", "x")
    assert caches.page("a", after=None, size=5) == ([], False)
    caches.add("a", cached("y", 20.0))
    assert caches.expire_at("a", "y", 30.0).expires == 30.0


def test_a_tenant_sees_its_own_alone() -> None:
    """Another tenant's id is as unknown as any, and its number does not count."""
    caches = CachedContents(max_per_tenant=1, now=lambda: 0.0)
    caches.add("a", cached("x", 10.0))
    caches.add("b", cached("y", 10.0))
    for look in (caches.get, caches.remove):
        with pytest.raises(CachedContentNotFoundError):
            look("b", "x")
    assert [c.id for c in caches.page("b", after=None, size=5)[0]] == ["y"]
