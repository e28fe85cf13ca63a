"""Responses that are kept: looked up, gone on from, listed, forgotten, and nobody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.api.responses_kept import KeptResponse, KeptResponses
from gateway.backends.echo import EchoBackend
from gateway.errors import ResponseNotFoundError
from gateway.memory import TenantMemory
from prefixcache.types import FinishReason
from tests.support.bodies import error_of
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import write_chat_tokenizer

PATH = "/v1/responses"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    write_chat_tokenizer(tmp_path)
    async with running_gateway(EchoBackend(tmp_path)) as running:
        yield running


async def create(gateway: Gateway, text: str = "hello", **fields: Any) -> Any:
    make: Any = gateway.openai.responses.create
    return await make(**({"model": MODEL, "input": text} | fields))


async def test_a_response_can_be_looked_up_and_forgotten(gateway: Gateway) -> None:
    """What was answered is found again as it was, until it is deleted."""
    made = await create(gateway)
    found = await gateway.openai.responses.retrieve(made.id)
    assert found.model_dump() == made.model_dump()
    await gateway.openai.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.responses.delete(made.id)


async def test_a_streamed_response_is_kept_as_well(gateway: Gateway) -> None:
    """The response of a stream's last event can be looked up."""
    events = [event async for event in await create(gateway, stream=True)]
    made = events[-1].response
    assert (await gateway.openai.responses.retrieve(made.id)).output_text == made.output_text


@pytest.mark.parametrize("path", ["/resp_x", "/resp_x/input_items"])
async def test_an_unknown_response_is_a_404_in_the_envelope(gateway: Gateway, path: str) -> None:
    """An id that is none of the tenant's is not found, whoever else may have it."""
    status, reply = await gateway.get(PATH + path)
    assert status == 404
    assert error_of(reply)["code"] == "response_not_found"


async def test_store_false_keeps_nothing(gateway: Gateway) -> None:
    """A client that wants nothing kept finds nothing."""
    made = await create(gateway, store=False)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        await gateway.openai.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        await create(gateway, previous_response_id=made.id)
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"


async def test_a_conversation_goes_on_from_a_response(gateway: Gateway) -> None:
    """The prompt has all turns in order and the new instructions alone."""
    first = await create(gateway, " one", instructions="old")
    second = await create(gateway, " two", previous_response_id=first.id, instructions="new")
    third = await create(gateway, " three", previous_response_id=second.id)
    assert second.previous_response_id == first.id
    said = ["user\n one", f"assistant\n{first.output_text}", "user\n two"]
    assert second.output_text == "\n".join(["system\nnew", *said, "assistant\n"])
    said += [f"assistant\n{second.output_text}", "user\n three", "assistant\n"]
    assert third.output_text == "\n".join(said)


async def test_deleting_a_response_leaves_what_went_on_from_it(gateway: Gateway) -> None:
    """A later response has its whole conversation."""
    first = await create(gateway, " one")
    second = await create(gateway, " two", previous_response_id=first.id)
    await gateway.openai.responses.delete(first.id)
    third = await create(gateway, " three", previous_response_id=second.id)
    assert "user\n one\n" in third.output_text
    with pytest.raises(openai.BadRequestError):
        await create(gateway, previous_response_id=first.id)


async def test_calls_are_gone_on_from(tmp_path: Path) -> None:
    """A function's output is enough beside the id of the response that called it."""
    write_chat_tokenizer(tmp_path)
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}({{ c.function.arguments.n }}){% endfor %};{% endfor %}"
        "{% if tools %}<tool_call>{{ tools[0].function.name }}{% endif %}"
    )
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    call = '<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>'
    backend = ScriptedBackend(tmp_path, [[call, FinishReason.STOP], ["done", FinishReason.STOP]])
    backend.max_model_tokens = 2000
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    async with running_gateway(backend) as gateway:
        first = await create(gateway, tools=tools)
        (item,) = first.output
        assert (item.type, item.name, item.arguments) == ("function_call", "f", '{"n": 1}')
        output = {"type": "function_call_output", "call_id": item.call_id, "output": "2"}
        await create(gateway, input=[output], tools=tools, previous_response_id=first.id)
        served = gateway.service.served()
        prompt = served.encoder.tokenizer.decode(
            [*memoryview(backend.requests[1].token_ids).cast("I")]
        )
        events = await gateway.openai.responses.input_items.list(first.id)
    assert prompt == "user:hello;assistant:f(1);tool:2;<tool_call>f"
    assert [each.type for each in events.data] == ["message"]


async def test_input_items_are_listed_in_pages(gateway: Gateway) -> None:
    """All that the model was given is listed, the latest first unless asked otherwise."""
    first = await create(gateway, " one")
    second = await create(gateway, " two", previous_response_id=first.id)
    listing = gateway.openai.responses.input_items.list
    newest = await listing(second.id, limit=2)
    assert [item.role for item in newest.data] == ["user", "assistant"]  # type: ignore[union-attr]
    assert newest.has_more
    oldest = [item async for item in listing(second.id, order="asc", limit=1)]
    assert [item.id for item in oldest][1:] == [item.id for item in newest.data][::-1]
    texts = [item.to_dict()["content"][0]["text"] for item in oldest]  # type: ignore[index]
    assert texts == [
        " one",
        first.output_text,
        " two",
    ]


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=nobody"])
async def test_a_wrong_page_is_refused_by_name(gateway: Gateway, query: str) -> None:
    """A parameter of the wrong kind is a 400 that names it."""
    made = await create(gateway)
    status, reply = await gateway.get(f"{PATH}/{made.id}/input_items?{query}")
    assert (status, error_of(reply)["param"]) == (400, query.partition("=")[0])


async def test_responses_are_not_streamed_again(gateway: Gateway) -> None:
    """Asking for a kept response's events is refused, and stream=false is the default."""
    made = await create(gateway)
    status, reply = await gateway.get(f"{PATH}/{made.id}?stream=true")
    assert (status, error_of(reply)["param"]) == (400, "stream")
    status, _ = await gateway.get(f"{PATH}/{made.id}?stream=false")
    assert status == 200


async def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    """The oldest responses of a tenant make room, and none outlives its time."""
    write_chat_tokenizer(tmp_path)
    async with running_gateway(EchoBackend(tmp_path), max_kept_tenant_bytes=8000) as gateway:
        made = [await create(gateway, f"{n}") for n in range(8)]
        statuses = [(await gateway.get(f"{PATH}/{each.id}"))[0] for each in made]
    assert statuses == sorted(statuses, reverse=True)
    assert statuses[0] == 404
    assert statuses[-1] == 200


async def test_another_tenants_response_is_unknown() -> None:
    """The store gives a tenant its own alone."""
    kept = KeptResponses(
        TenantMemory(max_tenant_bytes=9999, max_bytes=9999, ttl_seconds=10, clock=lambda: 0.0)
    )
    response = KeptResponse(
        id="resp_1",
        reply=b"{}",
        context=(),
        output=(),
        model="m",
        tools=b"",
        prompt=b"",
        conversation_bytes=1,
    )
    kept.keep("a", response)
    assert kept.shown("a", "resp_1") is response
    for find in (kept.shown, kept.previous, kept.forget):
        with pytest.raises(ResponseNotFoundError):
            find("b", "resp_1")
    assert kept.shown("a", "resp_1") is response


async def test_prompts_are_compared(gateway: Gateway) -> None:
    """Diagnostics tell whether a prompt begins with an earlier one, and else from where."""

    async def compared(text: str, with_id: str, **fields: Any) -> Any:
        options = {"comparison_response_id": with_id}
        return await create(gateway, text, prompt_cache_options=options, **fields)

    first = await create(gateway, " one")
    assert first.prompt_cache_diagnostics is None
    again = await compared(" two", first.id, previous_response_id=first.id)
    assert again.prompt_cache_diagnostics.type == "cache_hit"
    other = await compared(" one two", first.id)
    found = other.prompt_cache_diagnostics
    assert (found.type, found.reason) == ("cache_miss", "input_changed")
    assert found.comparison_reusable_tokens + found.cache_missed_tokens == other.usage.input_tokens
    assert found.comparison_reusable_tokens > 0
    unknown = await compared(" one", "resp_x")
    assert unknown.prompt_cache_diagnostics.type == "comparison_response_not_found"
    tools = [{"type": "function", "name": "f"}]
    changed = await compared(" three", first.id, tools=tools)
    assert changed.prompt_cache_diagnostics.reason == "tools_changed"
    salted = await compared(" one", first.id, extra_body={"cache_salt": "s"})
    assert salted.prompt_cache_diagnostics.type == "unavailable"
