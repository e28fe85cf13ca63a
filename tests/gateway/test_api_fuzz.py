"""Bodies made from /openapi.json, right and wrong: no answer is our fault or undocumented."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import hdrs

from gateway.api.openapi import describe
from gateway.app import ROUTES
from gateway.backends.echo import EchoBackend
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.schemas import SchemaValues
from tests.support.tokenizers import write_chat_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOCUMENT: Any = msgspec.json.decode(msgspec.json.encode(describe(ROUTES)))
WITH_BODIES = [route for route in ROUTES if route.body is not None]
WITHOUT = [route for route in ROUTES if route.body is None]
N_BODIES = 400
LIKELY: dict[str, dict[str, Any]] = {  # by the end of a path: what a schema cannot say is needed
    "{cached_id}": {"ttl": "300s", "expireTime": None},
    "cachedContents": {"ttl": "1s", "expireTime": None, "model": MODEL},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("model")
    write_chat_tokenizer(folder)
    async with running_gateway(EchoBackend(folder, max_model_tokens=300)) as running:
        yield running


def operation_of(path: str, method: str) -> Any:
    return DOCUMENT["paths"][path.replace(":.+", "")][method.lower()]


def name_of(route: Any) -> str:
    return f"{route.method} {route.path}"


@pytest.mark.parametrize("route", WITH_BODIES, ids=name_of)
async def test_every_body_is_answered_as_described(gateway: Gateway, route: Any) -> None:
    """Bodies that the schema allows, and spoiled ones, get a documented status and content."""
    operation = operation_of(route.path, route.method)
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    values = SchemaValues(DOCUMENT, random.Random(7))
    url = gateway.url + filled(route.path, await name_for(gateway, route))
    found = set()
    for n in range(N_BODIES):
        body = values.value(schema)
        if "model" in body:
            body["model"] = MODEL
        if n % 5 == 0:
            body = {**body, **LIKELY.get(route.path.rpartition("/")[2], {})}
        if n % 3 == 2:
            body = values.spoiled(body)
        async with gateway.http.request(route.method, url, json=body) as reply:
            said = await reply.text()
            documented = operation["responses"].get(str(reply.status))
            assert reply.status < 500 or reply.status == 501, (body, said)  # 501: an echo cannot
            assert documented is not None, (reply.status, body, said)
            assert reply.content_type in documented["content"], (body, said)
            check_content(route, reply, said)
            found.add(reply.status)
    assert 400 in found
    assert found & {200, 501}


@pytest.mark.parametrize("route", WITHOUT, ids=name_of)
async def test_every_url_is_answered_as_described(gateway: Gateway, route: Any) -> None:
    """Unknown names and odd parameters get a documented status."""
    operation = operation_of(route.path, route.method)
    for name in (MODEL, "x", "a%2Fb", "%F0%9F%99%82", "x" * 500):
        for query in ("", "?limit=0", "?limit=5&order=asc", "?stream=true", "?order=%00"):
            url = gateway.url + filled(route.path, name) + query
            async with gateway.http.request(route.method, url) as reply:
                said = await reply.text()
                assert str(reply.status) in operation["responses"], (url, said)
                check_content(route, reply, said)


def check_content(route: Any, reply: aiohttp.ClientResponse, said: str) -> None:
    """Fail unless JSON is of the type that the route declares for its status."""
    if reply.content_type == "application/json":
        msgspec.json.decode(said, type=route.answer if reply.status == 200 else route.error)


async def name_for(gateway: Gateway, route: Any) -> str:
    """Return what the path's parameter is to be, which is made first where it must be."""
    if "{cached_id}" not in route.path:
        return MODEL
    made = {"model": MODEL, "contents": [{"parts": [{"text": "one"}]}]}
    _, reply = await gateway.post("/v1beta/cachedContents", made)
    return str(reply["name"]).rpartition("/")[2]


def filled(path: str, name: str = MODEL) -> str:
    """Return `path` with its parameters replaced by `name`."""
    before, brace, rest = path.partition("{")
    return before + name + filled(rest.partition("}")[2], name) if brace else before


async def test_methods_that_are_not_described_are_refused(gateway: Gateway) -> None:
    """Each known path answers another method with a 405."""
    for path, methods in DOCUMENT["paths"].items():
        for method in {hdrs.METH_PATCH, hdrs.METH_PUT} - {name.upper() for name in methods}:
            async with gateway.http.request(method, gateway.url + filled(path)) as reply:
                assert reply.status == 405
