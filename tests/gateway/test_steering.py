"""The operator's routes that look into the cache and change it: they tell the truth, at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.echo import EchoBackend
from gateway.backends.local import LocalBackend
from prefixcache.config import EngineConfig
from tests.support.adapters import write_adapter
from tests.support.architectures import tiny_model
from tests.support.models import write_tiny_model
from tests.support.prompts import SYSTEM, asked, cached, code_of, publish, request
from tests.support.scripted import ScriptedBackend
from tests.support.tenancy import ACME, BETA, Keyed, keyed_gateway
from tests.support.tokenizers import write_chat_tokenizer
from tests.support.waiting import until

INVALIDATE, TREE = "/admin/invalidate", "/admin/tree"


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    write_chat_tokenizer(tmp_path)
    async with keyed_gateway(EchoBackend(tmp_path, seconds_per_token=0.001)) as running:
        yield running


@pytest.mark.parametrize(
    ("body", "told", "lost"),
    [
        ({"kind": "everything"}, {"name": None}, (True, True)),
        ({"kind": "model"}, {"name": "tiny"}, (True, True)),
        ({"kind": "model", "name": "tiny"}, {"name": "tiny"}, (True, True)),
        ({"kind": "tenant", "name": "acme"}, {"name": "acme"}, (True, False)),
    ],
)
async def test_what_is_invalidated_is_found_no_more(
    keyed: Keyed, body: dict[str, Any], told: dict[str, Any], lost: tuple[bool, bool]
) -> None:
    """By those whose it was and nobody else, from the answer on, which says what it was."""
    own = asked("x", system="My own text. " * 10)
    keys = (ACME, BETA)
    for key in keys:
        await cached(keyed, key, own)
    answer = await request(keyed, "POST", INVALIDATE, body)
    assert answer == (200, {"kind": body["kind"], "versions": [], **told})
    assert tuple([await cached(keyed, key, own) < 16 for key in keys]) == lost


async def test_a_prompts_version_is_retired(keyed: Keyed) -> None:
    """The answer has its version; a second time there is nothing."""
    await publish(keyed)
    body = {"kind": "prompt", "name": "kind", "version": 1}
    answer = await request(keyed, "POST", INVALIDATE, body)
    assert answer == (200, {"kind": "prompt", "name": "kind", "versions": [1]})
    assert await cached(keyed, ACME, asked("x", system=SYSTEM)) == 0
    again = await request(keyed, "POST", INVALIDATE, body)
    assert code_of(again) == (404, "retired_version")


async def test_published_prompts_outlive_an_invalidation(keyed: Keyed) -> None:
    """They are the operator's own word, so they are read again."""
    card = await publish(keyed)
    await request(keyed, "POST", INVALIDATE, {"kind": "everything"})
    assert await cached(keyed, ACME, asked("x", system=SYSTEM)) == card["n_tokens"]


async def test_an_invalidation_waits_for_nobody(keyed: Keyed) -> None:
    """A request that runs comes to its end, and leaves nothing that could be found."""
    own = asked("x", system="My own text. " * 10, max_tokens=100)
    running = asyncio.create_task(request(keyed, "POST", "/v1/chat/completions", own, ACME))
    await until(lambda: keyed.gateway.backend.stats().running, seconds=10)
    assert (await request(keyed, "POST", INVALIDATE, {"kind": "everything"}))[0] == 200
    assert not running.done()
    assert (await running)[0] == 200
    assert await cached(keyed, ACME, own) < 16
    assert await cached(keyed, ACME, own) >= 16


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ({"kind": "nothing"}, (400, "invalid_value")),
        ({}, (400, "invalid_value")),
        ({"kind": "tenant"}, (400, "invalid_value")),
        ({"kind": "prompt"}, (400, "invalid_value")),
        ({"kind": "everything", "name": "acme"}, (400, "invalid_value")),
        ({"kind": "tenant", "name": "acme", "version": 1}, (400, "invalid_value")),
        ({"kind": "tenant", "name": "nobody"}, (404, "tenant_not_found")),
        ({"kind": "adapter", "name": "nobody"}, (404, "model_not_found")),
        ({"kind": "model", "name": "nobody"}, (404, "model_not_found")),
        ({"kind": "prompt", "name": "nobody"}, (404, "prompt_not_found")),
    ],
)
async def test_what_is_not_there_is_not_invalidated(
    keyed: Keyed, body: dict[str, Any], refused: tuple[int, str]
) -> None:
    """An answer that something was done is never given for nothing."""
    assert code_of(await request(keyed, "POST", INVALIDATE, body)) == refused


async def test_the_tree_is_shown(keyed: Keyed) -> None:
    """Of all tenants or one, within the asked number of nodes, never with a token."""
    for key in (ACME, BETA):
        await cached(keyed, key, asked("x", system="My own text. " * 10))
    _, shown = await request(keyed, "GET", TREE)
    assert {tree["tenant"] for tree in shown["trees"]} == {"acme", "beta"}
    _, own = await request(keyed, "GET", f"{TREE}?tenant=acme&max_nodes=10")
    assert {tree["tenant"] for tree in own["trees"]} == {"acme"}
    _, none = await request(keyed, "GET", f"{TREE}?max_nodes=0")
    assert (none["trees"], none["is_complete"]) == ([], False)
    for query in ("max_nodes=-1", "max_nodes=x", "max_nodes=1000000"):
        assert (await request(keyed, "GET", f"{TREE}?{query}"))[0] == 400


async def test_numbers_are_shown(keyed: Keyed) -> None:
    """What the engine counted, the pool, and who waits."""
    await cached(keyed, ACME, asked("x"))
    _, stats = await request(keyed, "GET", "/admin/stats")
    assert (stats["is_ready"], stats["queue"]) == (True, {})
    assert stats["engine"]["prompt_tokens_total"] > 0
    assert set(stats["engine"]["pool"]) == {"free", "cached", "held"}
    assert "misses" in stats["engine"]


async def test_a_backend_that_cannot_says_so(tmp_path: Path) -> None:
    """What it has no way to do is 501, never a success."""
    write_chat_tokenizer(tmp_path)
    async with keyed_gateway(ScriptedBackend(tmp_path, [])) as keyed:
        for method, path, body in (
            ("POST", INVALIDATE, {"kind": "everything"}),
            ("GET", TREE, None),
            ("POST", "/v1/prompts", {"name": "a", "system": SYSTEM}),
            ("POST", "/admin/reload-model", {}),
            ("DELETE", "/admin/adapters/one", None),
        ):
            answer = await request(keyed, method, path, body)
            assert code_of(answer) == (501, "not_supported"), path


async def test_tenants_may_do_none_of_it(keyed: Keyed) -> None:
    """A tenant's key is for the other routes."""
    for method, path in (
        ("GET", "/admin/stats"),
        ("GET", TREE),
        ("POST", INVALIDATE),
        ("POST", "/admin/adapters"),
        ("DELETE", "/admin/adapters/one"),
        ("POST", "/admin/reload-model"),
    ):
        assert code_of(await request(keyed, method, path, {}, ACME)) == (403, "access_refused")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    (root / "model").mkdir()
    write_tiny_model(root / "model")
    write_adapter(root / "allowed" / "one", tiny_model("llama"), seed=1)
    write_adapter(root / "other" / "two", tiny_model("llama"), seed=2)
    (root / "allowed" / "way-out").symlink_to(root / "other")
    return root


async def test_adapters_and_weights_come_and_go(folders: Path) -> None:
    """From allowed folders alone; prompts for an adapter are there for its requests alone."""
    config = EngineConfig(model=str(folders / "model"), kv_memory_bytes=8 << 20, threads=1)
    allowed = (str(folders / "allowed"),)
    async with keyed_gateway(LocalBackend(config), adapter_folders=allowed) as keyed:
        one = {"name": "one", "folder": str(folders / "allowed" / "one")}
        for folder in ("other/two", "allowed/../other/two", "allowed/way-out/two"):
            wrong = {"name": "two", "folder": str(folders / folder)}
            answer = await request(keyed, "POST", "/admin/adapters", wrong)
            assert code_of(answer) == (400, "change_refused"), folder
        named_as_model = await request(keyed, "POST", "/admin/adapters", one | {"name": "tiny"})
        assert code_of(named_as_model) == (400, "change_refused")
        status, info = await request(keyed, "POST", "/admin/adapters", one)
        assert (status, [each["name"] for each in info["adapters"]]) == (200, ["one"])
        card = await publish(keyed, model="one", system=SYSTEM[:60])
        assert card["model"] == "one"
        by_adapter = asked("x", system=SYSTEM[:60]) | {"model": "one"}
        assert await cached(keyed, ACME, by_adapter) == card["n_tokens"]
        assert await cached(keyed, BETA, asked("x", system=SYSTEM[:60])) == 0
        invalidated = await request(keyed, "POST", INVALIDATE, {"kind": "adapter", "name": "one"})
        assert invalidated[0] == 200
        assert await cached(keyed, BETA, by_adapter) == card["n_tokens"]  # it was read again
        assert (await request(keyed, "POST", "/admin/reload-model", {"drains": False}))[0] == 200
        assert await cached(keyed, ACME, by_adapter) == card["n_tokens"]
        status, info = await request(keyed, "DELETE", "/admin/adapters/one")
        assert (status, info["adapters"]) == (200, [])
        gone = await request(keyed, "DELETE", "/admin/adapters/one")
        assert code_of(gone) == (400, "change_refused")


async def test_no_folder_is_allowed_if_none_is_named(folders: Path) -> None:
    """Without the setting nothing can be loaded by request."""
    config = EngineConfig(model=str(folders / "model"), kv_memory_bytes=8 << 20, threads=1)
    async with keyed_gateway(LocalBackend(config)) as keyed:
        one = {"name": "one", "folder": str(folders / "allowed" / "one")}
        answer = await request(keyed, "POST", "/admin/adapters", one)
        assert code_of(answer) == (400, "change_refused")
        assert "adapter_folders" in answer[1]["error"]["message"]
