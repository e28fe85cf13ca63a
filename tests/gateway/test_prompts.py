"""Published prompts over HTTP: shared with whom they are for, until they are retired."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.api.openai_models import CHAT_DECODER
from gateway.api.prompts import PublishBody
from gateway.backends.echo import EchoBackend
from gateway.tenants import TenantConfig
from tests.support.gateways import MODEL, running_gateway
from tests.support.prompts import (
    PROMPT,
    PROMPTS,
    SYSTEM,
    TOOL,
    asked,
    cached,
    code_of,
    publish,
    request,
)
from tests.support.tenancy import ACME, ADMIN, BETA, Keyed, keyed_gateway
from tests.support.tokenizers import write_chat_tokenizer
from tests.support.waiting import until

CHAT = "/v1/chat/completions"


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    write_chat_tokenizer(tmp_path)
    async with keyed_gateway(EchoBackend(tmp_path)) as running:
        yield running


async def test_all_tenants_find_what_is_published(keyed: Keyed) -> None:
    """The text and what the template puts behind it, whoever asks first, by content or by name."""
    card = await publish(keyed)
    assert (card["name"], card["version"], card["status"]) == ("kind", 1, "ready")
    assert (card["tenants"], card["pin"], card["expires"]) == (None, True, None)
    assert card["n_tokens"] > len(SYSTEM) // 2
    assert card["n_tokens"] - 16 < card["cached_tokens"] <= card["n_tokens"]
    for key in (BETA, ACME):
        assert await cached(keyed, key, asked("x", system=SYSTEM)) == card["n_tokens"]
        assert await cached(keyed, key, asked("y", prompt={"name": "kind"})) == card["n_tokens"]
    assert await cached(keyed, ACME, asked("x", system="other")) < 16


async def test_chosen_tenants_alone_find_it(keyed: Keyed) -> None:
    """Others neither find its tokens nor are told that there is such a name."""
    card = await publish(keyed, tenants=["acme"])
    assert await cached(keyed, ACME, asked("x", system=SYSTEM)) == card["n_tokens"]
    assert await cached(keyed, BETA, asked("x", system=SYSTEM)) == 0
    refused = await request(keyed, "POST", CHAT, asked(prompt={"name": "kind"}), BETA)
    unknown = await request(keyed, "POST", CHAT, asked(prompt={"name": "kund"}), BETA)
    assert code_of(refused) == code_of(unknown) == (404, "prompt_not_found")
    assert refused[1]["error"]["message"].replace("kind", "kund") == unknown[1]["error"]["message"]
    listed = [(await request(keyed, "GET", PROMPTS, key=key))[1] for key in (ACME, BETA)]
    assert [[each["name"] for each in found["data"]] for found in listed] == [["kind"], []]


async def test_a_tenants_limits_name_what_it_shares(tmp_path: Path) -> None:
    """A prompt that is for all is not for a tenant whose list leaves it out, in either way."""
    write_chat_tokenizer(tmp_path)
    async with keyed_gateway(EchoBackend(tmp_path), TenantConfig(prompts=("other",))) as keyed:
        card = await publish(keyed)
        own = await publish(keyed, name="own", system="Own text. " * 20, tenants=["acme"])
        assert await cached(keyed, ACME, asked("x", system=SYSTEM)) < 16
        assert await cached(keyed, BETA, asked("x", system=SYSTEM)) == card["n_tokens"]
        assert await cached(keyed, ACME, asked(prompt={"name": "own"})) == own["n_tokens"]
        named = await request(keyed, "POST", CHAT, asked(prompt={"name": "kind"}), ACME)
        assert code_of(named) == (404, "prompt_not_found")


async def test_a_new_version_retires_the_old_one(keyed: Keyed) -> None:
    """From the answer on the old text is found by nobody; its version is said to be retired."""
    await publish(keyed)
    card = await publish(keyed, system="Another text. " * 20)
    assert card["version"] == 2
    assert await cached(keyed, BETA, asked("x", system=SYSTEM)) < 16
    assert await cached(keyed, BETA, asked(prompt={"name": "kind"})) == card["n_tokens"]
    old = asked(prompt={"name": "kind", "version": 1})
    answer = await request(keyed, "POST", CHAT, old, BETA)
    assert code_of(answer) == (404, "retired_version")
    assert "version 2 is current" in answer[1]["error"]["message"]
    new = asked(prompt={"name": "kind", "version": 3})
    assert code_of(await request(keyed, "POST", CHAT, new, BETA)) == (404, "prompt_not_found")


async def test_the_same_text_can_be_the_next_version(keyed: Keyed) -> None:
    """Retiring the version before it takes nothing from it."""
    await publish(keyed)
    card = await publish(keyed)
    assert await cached(keyed, BETA, asked("x", system=SYSTEM)) == card["n_tokens"]


async def test_versions_only_go_up(keyed: Keyed) -> None:
    """A version that was there is refused, unless it is what is current."""
    first = await publish(keyed, version=5)
    assert await publish(keyed, version=5) == first
    again = await request(keyed, "POST", PROMPTS, {**PROMPT, "version": 5, "pin": False})
    assert code_of(again) == (409, "prompt_conflict")
    assert (await publish(keyed))["version"] == 6


async def test_a_retired_prompt_is_gone(keyed: Keyed) -> None:
    """One version or all: no tokens are found, no name is known, and the answer says what went."""
    await publish(keyed)
    wrong = await request(keyed, "DELETE", f"{PROMPTS}/kind/2")
    assert code_of(wrong) == (404, "prompt_not_found")
    retired = {"object": "prompt.retired", "name": "kind", "versions": [1]}
    assert await request(keyed, "DELETE", f"{PROMPTS}/kind/1") == (200, retired)
    assert await cached(keyed, BETA, asked("x", system=SYSTEM)) == 0
    for method in ("GET", "DELETE"):
        answer = await request(keyed, method, f"{PROMPTS}/kind")
        assert code_of(answer) == (404, "retired_version")
    await publish(keyed)
    assert await request(keyed, "DELETE", f"{PROMPTS}/kind") == (
        200,
        {**retired, "versions": [2]},
    )


async def test_a_lifetime_ends(keyed: Keyed) -> None:
    """When its time has come a prompt is found by nobody, by name at once."""
    card = await publish(keyed, ttl_seconds=60)
    assert card["expires"] == card["created"] + 60
    keyed.wall_clock.now += 60
    named = await request(keyed, "POST", CHAT, asked(prompt={"name": "kind"}), ACME)
    assert code_of(named) == (404, "retired_version")
    prompts = keyed.gateway.service.prompts
    prompts.look_at_lifetimes()
    await until(lambda: not shared(keyed), seconds=10)
    assert await cached(keyed, ACME, asked("x", system=SYSTEM)) == 0


def shared(keyed: Keyed) -> list[str]:
    prompts = keyed.gateway.service.prompts
    return [entry.prompt.name for entry in prompts.entries(tenant=None)]


async def test_tools_are_part_of_it(keyed: Keyed) -> None:
    """They can be called as if the request had brought them."""
    await publish(keyed, tools=[TOOL])
    choice = {"type": "function", "function": {"name": "nothing"}}
    body = asked(prompt={"name": "kind"}, tool_choice=choice)
    wrong = await request(keyed, "POST", CHAT, body, ACME)
    assert "nothing" in wrong[1]["error"]["message"]
    body = asked(prompt={"name": "kind"}, tool_choice="none")
    assert (await request(keyed, "POST", CHAT, body, ACME))[0] == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "developer"}]}, "messages[1]"),
    ],
)
async def test_what_the_prompt_says_is_not_said_again(
    keyed: Keyed, fields: dict[str, Any], param: str
) -> None:
    """A system message or tools beside a named prompt are refused by their field."""
    await publish(keyed)
    status, reply = await request(
        keyed, "POST", CHAT, asked(prompt={"name": "kind"}) | fields, ACME
    )
    assert (status, reply["error"]["param"]) == (400, param)


async def test_other_dialects_name_it_too(keyed: Keyed) -> None:
    """Responses by OpenAI's own field, Anthropic's messages by ours: the same tokens are found."""
    card = await publish(keyed, tools=[TOOL])
    body = {"model": MODEL, "input": "hi", "prompt": {"id": "kind", "version": "1"}}
    status, reply = await request(keyed, "POST", "/v1/responses", body, ACME)
    assert status == 200, reply
    assert reply["usage"]["input_tokens_details"]["cached_tokens"] == card["n_tokens"]
    assert (reply["prompt"], reply["instructions"]) == ({"id": "kind", "version": "1"}, None)
    message = asked(prompt={"name": "kind"})
    status, reply = await request(keyed, "POST", "/v1/messages", message, BETA)
    assert status == 200, reply
    assert reply["usage"]["cache_read_input_tokens"] == card["n_tokens"]
    status, counted = await request(keyed, "POST", "/v1/messages/count_tokens", message, BETA)
    assert status == 200
    assert counted["input_tokens"] > card["n_tokens"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"input": "hi", "prompt": {"id": "kind"}, "instructions": "a"}),
        ("/v1/responses", {"input": "hi", "prompt": {"id": "kind", "variables": {"a": "b"}}}),
        (
            "/v1/responses",
            {"input": [{"role": "system", "content": "a"}], "prompt": {"id": "kind"}},
        ),
        ("/v1/messages", asked(prompt={"name": "kind"}, system="a")),
        ("/v1/messages", asked(prompt={"name": "kind", "verison": 1})),
    ],
)
async def test_other_dialects_refuse_as_well(
    keyed: Keyed, path: str, fields: dict[str, Any]
) -> None:
    """What the prompt says is not said again, and unknown fields of the reference are no whim."""
    await publish(keyed)
    assert (await request(keyed, "POST", path, {"model": MODEL} | fields, ACME))[0] == 400


async def test_unknown_versions_of_a_response_are_not_found(keyed: Keyed) -> None:
    """A version that is no number cannot be there."""
    await publish(keyed)
    for version in ("2", "latest", ""):
        body = {"model": MODEL, "input": "hi", "prompt": {"id": "kind", "version": version}}
        answer = await request(keyed, "POST", "/v1/responses", body, ACME)
        assert code_of(answer) == (404, "prompt_not_found"), version


async def test_only_the_operator_publishes_and_reads_texts(keyed: Keyed) -> None:
    """A tenant may look at cards; the text is shown to the operator who asks for it."""
    await publish(keyed)
    for method, path in (
        ("POST", PROMPTS),
        ("DELETE", f"{PROMPTS}/kind"),
        ("GET", f"{PROMPTS}?text=true"),
        ("GET", f"{PROMPTS}/kind?text=1"),
    ):
        answer = await request(keyed, method, path, PROMPT, ACME)
        assert code_of(answer) == (403, "access_refused")
    _, seen = await request(keyed, "GET", f"{PROMPTS}/kind/1", key=ACME)
    assert not {"system", "tools", "tenants", "trouble"} & seen.keys()
    _, shown = await request(keyed, "GET", f"{PROMPTS}/kind")
    assert "system" not in shown
    _, shown = await request(keyed, "GET", f"{PROMPTS}/kind?text=true")
    assert (shown["system"], shown["tools"]) == (SYSTEM, [])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": ""}, "name"),
        ({"version": 0}, "version"),
        ({"system": ""}, "system"),
        ({"system": None}, "system"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tenants": []}, "tenants"),
        ({"tenants": ["acme", "nobody"]}, "tenants[1]"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl": 5}, "ttl"),
        ({"system": "short"}, None),  # not a block
        ({"system": "long " * 4000}, None),  # more than the model takes
    ],
)
async def test_what_cannot_be_published_is_refused(
    keyed: Keyed, fields: dict[str, Any], param: str | None
) -> None:
    """The answer is a 400, names the field where it is one, and nothing is published."""
    status, reply = await request(keyed, "POST", PROMPTS, {**PROMPT, **fields})
    assert status == 400, reply
    assert param is None or param in (reply["error"]["param"], unknown_field(reply))
    assert shared(keyed) == []


def unknown_field(reply: dict[str, Any]) -> str | None:
    found = re.search(r"unknown field `(\w+)`", reply["error"]["message"])
    return None if found is None else found[1]


async def test_an_unknown_model_is_refused(keyed: Keyed) -> None:
    """A prompt is for the model or one of its adapters."""
    answer = await request(keyed, "POST", PROMPTS, {**PROMPT, "model": "nobody"})
    assert code_of(answer) == (404, "model_not_found")


async def test_so_many_names_and_no_more(tmp_path: Path) -> None:
    """The limit counts names; another version of one is always welcome."""
    write_chat_tokenizer(tmp_path)
    async with keyed_gateway(EchoBackend(tmp_path), max_published_prompts=1) as keyed:
        await publish(keyed)
        await publish(keyed)
        answer = await request(keyed, "POST", PROMPTS, {**PROMPT, "name": "more"})
        assert code_of(answer) == (400, "change_refused")


async def test_without_keys_this_machine_publishes(tmp_path: Path) -> None:
    """Everybody on it may; a page of another host may not."""
    write_chat_tokenizer(tmp_path)
    async with running_gateway(EchoBackend(tmp_path)) as gateway:
        status, _ = await gateway.post(PROMPTS, PROMPT, Origin="http://elsewhere.example")
        assert status == 403
        status, card = await gateway.post(PROMPTS, PROMPT)
        assert (status, card["status"]) == (200, "ready")
        status, _ = await gateway.post(CHAT, asked(prompt={"name": "kind"}))
        assert status == 200


async def test_requests_that_run_are_not_touched(tmp_path: Path) -> None:
    """An answer that began with a prompt comes to its end though that is retired meanwhile."""
    write_chat_tokenizer(tmp_path)
    async with keyed_gateway(EchoBackend(tmp_path, seconds_per_token=0.005)) as keyed:
        await publish(keyed)
        body = asked(prompt={"name": "kind"}, max_tokens=40)
        running = asyncio.create_task(request(keyed, "POST", CHAT, body, ACME))
        await until(lambda: keyed.gateway.backend.stats().running, seconds=10)
        await publish(keyed, system="Another text. " * 20)
        assert (await request(keyed, "DELETE", f"{PROMPTS}/kind"))[0] == 200
        assert not running.done()
        status, reply = await running
        assert (status, reply["usage"]["completion_tokens"]) == (200, 40)


async def test_no_card_of_nothing(keyed: Keyed) -> None:
    """The operator is told that there is no such prompt, too."""
    for path in ("kind", "kind/1", "kind/x"):
        answer = await request(keyed, "GET", f"{PROMPTS}/{path}", key=ADMIN)
        assert code_of(answer) == (404, "prompt_not_found")


def test_the_pages_examples_are_what_is_read() -> None:
    """The file and the request that the manual shows are a prompt and a chat."""
    page = (Path(__file__).parents[2] / "gateway/manual/prompts.md").read_text(encoding="utf-8")
    (file,) = re.findall(r"```toml\n(.*?)```", page, re.S)
    assert msgspec.convert(tomllib.loads(file), PublishBody).name == "support"
    (body,) = re.findall(r"```json\n(.*?)```", page, re.S)
    named = CHAT_DECODER.decode(body).prompt
    assert named is not None
    assert named.name == "support"
