"""Structured answers through the official client, and what becomes of wrong formats."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel

from prefixcache.types import FinishReason
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.inline import InlineBackend
from tests.support.models import write_tiny_model
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import write_chat_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")
MESSAGES: Any = [{"role": "user", "content": "hello"}]
COLOURS = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}}
STRICT = COLOURS | {"required": ["colour"], "additionalProperties": False}


class Colour(BaseModel):
    """What the client's own parser reads an answer into."""

    colour: Literal["red", "blue"]
    shade: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    async with running_gateway(InlineBackend.load(folder, 1 << 22)) as running:
        yield running


def schema_format(schema: object, *, strict: bool | None = True) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": strict},
    }


async def chat(gateway: Gateway, **fields: Any) -> Any:
    create: Any = gateway.openai.chat.completions.create
    options: dict[str, Any] = {"max_tokens": 200, "temperature": 1, "seed": 5}
    return await create(model=MODEL, messages=MESSAGES, **(options | fields))


async def test_the_client_parses_an_answer(gateway: Gateway) -> None:
    """The client's `parse` helper, which sends a strict schema, gets an object of its class."""
    reply = await gateway.openai.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Colour, temperature=1.5, seed=1
    )
    assert isinstance(reply.choices[0].message.parsed, Colour)
    assert reply.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_every_choice_follows_the_schema(gateway: Gateway, stream: bool) -> None:
    """n answers each follow the format, streamed or not."""
    reply = await chat(gateway, response_format=schema_format(STRICT), n=3, stream=stream)
    texts = ["", "", ""]
    if stream:
        async for chunk in reply:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        texts = [choice.message.content for choice in reply.choices]
    assert all(json.loads(text)["colour"] in ("red", "blue") for text in texts)


async def test_json_objects(gateway: Gateway) -> None:
    """json_object is any object: the text begins one, and is one if it had room to end."""
    reply = await chat(gateway, response_format={"type": "json_object"}, temperature=2)
    text, reason = reply.choices[0].message.content, reply.choices[0].finish_reason
    assert text.startswith("{")
    assert reason == "length" or isinstance(json.loads(text), dict)


async def test_an_answer_cut_short_is_told(gateway: Gateway) -> None:
    """max_tokens may cut the object: finish_reason is length."""
    reply = await chat(gateway, response_format=schema_format(STRICT), max_tokens=3)
    assert reply.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[a-c]{4}"}}, "[a-c]{4}"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"structured_outputs": {"grammar": 'start: "x" "y"?'}}, "xy?"),
        ({"structured_outputs": {"json": {"const": 7}}}, "7"),
        ({"guided_json": '{"const": 8}'}, "8"),
        ({"guided_regex": "[0-9]{2}"}, "[0-9]{2}"),
        ({"guided_choice": ["a b", "c"]}, "a b|c"),
        ({"guided_grammar": 'root ::= "u" | "v"'}, "u|v"),
    ],
    ids=str,
)
async def test_other_servers_fields(gateway: Gateway, fields: dict[str, Any], pattern: str) -> None:
    """The fields of vLLM, new and old, hold in chat and in completions."""
    reply = await chat(gateway, extra_body=fields)
    assert re.fullmatch(pattern, reply.choices[0].message.content)
    text: Any = await gateway.openai.completions.create(
        model=MODEL, prompt="hello", max_tokens=20, extra_body=fields
    )
    assert re.fullmatch(pattern, text.choices[0].text)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"response_format": schema_format({"type": "wrong"})}, "wrong"),
        ({"response_format": schema_format({"not": {}})}, "not"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "yaml"}}, "yaml"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "name"),
        ({"guided_regex": "("}, "unclosed"),
        ({"guided_regex": "a" * 100_000}, "bytes"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"structured_outputs": {"xml": "x"}}, "xml"),
        ({"guided_regex": "a", "guided_json": {}}, "only one"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "only one"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "only one"),
    ],
    ids=str,
)
async def test_a_wrong_format_is_a_400(
    gateway: Gateway, fields: dict[str, Any], reason: str, stream: bool
) -> None:
    """What cannot be followed is refused with the reason, before any output."""
    with pytest.raises(openai.BadRequestError, match=re.escape(reason)) as raised:
        await chat(gateway, extra_body=fields, stream=stream)
    assert any((raised.value.param or "").startswith(field) for field in fields)


async def test_a_grammar_that_is_too_long_never_leaves_the_gateway(tmp_path: Path) -> None:
    """It is refused before every choice of every prompt would carry it to the engine."""
    write_chat_tokenizer(tmp_path)
    backend = ScriptedBackend(tmp_path, [["x", FinishReason.STOP]])
    async with running_gateway(backend) as running:
        with pytest.raises(openai.BadRequestError, match="bytes") as raised:
            await chat(running, n=8, extra_body={"guided_regex": "a" * 2**20})
    assert raised.value.param == "guided_regex"


async def test_what_is_not_strict_may_have_unknown_keywords(gateway: Gateway) -> None:
    """Without strict, a schema is followed as far as it is understood; text is no format."""
    schema = {"const": 5, "not": {"type": "string"}}
    reply = await chat(gateway, response_format=schema_format(schema, strict=None))
    assert reply.choices[0].message.content == "5"
    reply = await chat(gateway, response_format={"type": "text"}, max_tokens=4)
    assert reply.usage.completion_tokens <= 4
