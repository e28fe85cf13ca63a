"""/v1/messages: what each field does, and how answers are written, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from gateway.backends.echo import EchoBackend
from prefixcache.types import FailureKind, FinishReason, Retain
from tests.support.anthropics import (
    BODY,
    COUNT,
    MESSAGES,
    anthropic_client,
    events,
    use_template,
)
from tests.support.bodies import CHAT
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.scripted import Script, ScriptedBackend
from tests.support.tokenizers import write_chat_tokenizer

TOOL: dict[str, Any] = {
    "name": "weather",
    "description": "The weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture
async def chat(tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway that echoes prompts of a ChatML template."""
    write_chat_tokenizer(tmp_path)
    async with running_gateway(EchoBackend(tmp_path)) as running:
        yield running


async def echoed(gateway: Gateway, **fields: Any) -> str:
    """Return the prompt that the model was shown, which is what an echo answers."""
    body = BODY | {"max_tokens": 2000} | fields
    status, reply = await gateway.post(MESSAGES, body)
    assert status == 200, reply
    blocks: Any = reply["content"]
    return "".join(block["text"] for block in blocks)


async def scripted(folder: Path, *script: Any, **fields: Any) -> tuple[Any, list[Any]]:
    """Return the whole answer and the events when the model says `script`."""
    write_chat_tokenizer(folder)
    use_template(folder)
    backend = ScriptedBackend(folder, [[*script], [*script]])
    backend.max_model_tokens = 2000
    async with running_gateway(backend) as gateway:
        status, whole = await gateway.post(MESSAGES, BODY | {"max_tokens": 50} | fields)
        assert status == 200, whole
        return whole, await events(gateway, BODY | {"max_tokens": 50} | fields)


def joined(stream: list[Any]) -> list[dict[str, Any]]:
    """Return the blocks that a stream tells of, checking the order of its events."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for name, data in stream:
        if name == "content_block_start":
            assert not is_open
            assert data["index"] == len(blocks)
            blocks.append(dict(data["content_block"], partial=""))
            is_open = True
        elif name == "content_block_delta":
            assert is_open
            assert data["index"] == len(blocks) - 1
            delta = data["delta"]
            if delta["type"] == "text_delta":
                blocks[-1]["text"] += delta["text"]
            else:
                assert delta["type"] == "input_json_delta"
                blocks[-1]["partial"] += delta["partial_json"]
        elif name == "content_block_stop":
            assert is_open
            is_open = False
    assert not is_open
    for block in blocks:
        partial = block.pop("partial")
        if block["type"] == "tool_use":
            block["input"] = json.loads(partial)
    return blocks


async def test_a_message_is_answered(gateway: Gateway) -> None:
    """The official client gets the model's turn, its reason to end, and usage."""
    async with anthropic_client(gateway) as client:
        reply = await client.messages.create(**BODY)
    assert (reply.type, reply.role, reply.model) == ("message", "assistant", MODEL)
    assert reply.id.startswith("msg_")
    assert [block.to_dict() for block in reply.content] == [{"type": "text", "text": "one two"}]
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (2, 2)


async def test_a_message_is_streamed(gateway: Gateway) -> None:
    """The official client puts the stream together to the same message."""
    async with anthropic_client(gateway) as client, client.messages.stream(**BODY) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        reply = await stream.get_final_message()
    assert text == "one two"
    assert [block.to_dict() for block in reply.content] == [{"type": "text", "text": text}]
    assert reply.stop_reason == "end_turn"
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (0 + 2, 2)


async def test_the_events_come_in_order(gateway: Gateway) -> None:
    """The start has the real count of the input, the end all usage; between them one block."""
    found = await events(gateway, BODY)
    names = [name for name, _ in found]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start = found[0][1]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert (start["usage"]["input_tokens"], start["usage"]["output_tokens"]) == (2, 0)
    end = found[-2][1]
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert (end["usage"]["input_tokens"], end["usage"]["output_tokens"]) == (2, 2)


async def test_system_and_turns_are_the_prompt_of_openais_form(chat: Gateway) -> None:
    """The same conversation has the same tokens in both dialects."""
    system = [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]
    turns = [{"role": "user", "content": [{"type": "text", "text": "one"}]},
             {"role": "assistant", "content": "two"},
             {"role": "user", "content": "three"}]  # fmt: skip
    mine = await echoed(chat, system=system, messages=turns)
    openai = [{"role": "system", "content": "hello world"}, *turns]
    _, reply = await chat.post(CHAT, {"model": MODEL, "messages": openai})
    choices: Any = reply["choices"]
    assert choices[0]["message"]["content"] == mine
    assert mine == "system\nhello world\nuser\none\nassistant\ntwo\nuser\nthree\nassistant\n"


async def test_thinking_is_passed_over(chat: Gateway) -> None:
    """Earlier thinking is not shown to the model, and asking for it changes nothing."""
    thought = [{"type": "thinking", "thinking": "hm", "signature": "s"},
               {"type": "redacted_thinking", "data": "x"},
               {"type": "text", "text": "two"}]  # fmt: skip
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": thought},
             {"role": "user", "content": "three"}]  # fmt: skip
    thinking = {"type": "enabled", "budget_tokens": 1024}
    text = await echoed(chat, messages=turns, thinking=thinking)
    assert text == "user\none\nassistant\ntwo\nuser\nthree\nassistant\n"


async def test_the_assistants_last_turn_goes_on(chat: Gateway) -> None:
    """A prefilled answer is continued where it ends, white space and all."""
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two is "}]
    assert await echoed(chat, messages=turns) == "user\none\nassistant\ntwo is "


async def test_calls_and_results_are_shown_as_templates_know_them(tmp_path: Path) -> None:
    """Calls belong to their turn; results are turns of their own, with the tool's name."""
    write_chat_tokenizer(tmp_path)
    use_template(tmp_path)
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [
            {"type": "text", "text": "wait"},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1",
             "content": [{"type": "text", "text": "sunny"}]},
            {"type": "text", "text": "and now?"}]},
    ]  # fmt: skip
    async with running_gateway(EchoBackend(tmp_path)) as gateway:
        text = await echoed(gateway, messages=turns)
    assert text == (
        'user\nhi\nassistant\nwait<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}\n'
        "tool\nsunny of weather\nuser\nand now?\nassistant\n"
    )


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([{"type": "image", "source": {}}], r"messages[0].content[0]: image"),
        ([{"type": "text", "text": "a"}, {"type": "document"}], r"content[1]: document"),
        ([{"type": "text"}], r"messages[0].content[0].text"),
        ([{"type": "tool_use", "id": "a", "name": "b", "input": {}}], r"content[0]: tool_use"),
        ([{"type": "tool_result", "content": "x"}], r"content[0].tool_use_id"),
        ([{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}],
         r"content[0].content[0]: image"),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_refused_by_name(
    gateway: Gateway, content: list[Any], named: str
) -> None:
    """A block of another kind is a 400 that says which block and which kind."""
    body = BODY | {"messages": [{"role": "user", "content": content}]}
    status, reply = await gateway.post(MESSAGES, body)
    error: Any = reply["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert named in error["message"]
    assert (await gateway.post(COUNT, body))[0] == 400


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"max_tokens": None}, 400),
        ({"max_tokens": -1}, 400),
        ({"max_tokens": 2**31}, 200),
        ({"temperature": 1.5}, 400),
        ({"top_k": -1}, 400),
        ({"messages": []}, 400),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400),
        ({"model": "other"}, 404),
        ({"model": ""}, 404),
        ({"model": 5}, 400),
        ({"stop_sequences": ["a", "b", "c", "d", "e"]}, 400),
        ({"stop_sequences": [""]}, 400),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400),
        ({"tools": [{"name": "x"}]}, 400),
        ({"tool_choice": {"type": "any"}}, 400),
        ({"tool_choice": {"type": "tool"}}, 400),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, 400),
        ({"container": "c"}, 400),
        ({"system": [{"type": "image"}]}, 400),
        ({"system": None, "tools": None, "temperature": None, "stop_sequences": None,
          "metadata": None, "thinking": None, "tool_choice": None, "stream": None,
          "cache_control": None, "top_k": None, "diagnostics": None}, 200),
        ({"metadata": {"user_id": "u"}, "service_tier": "auto", "unheard_of": 1}, 200),
    ],
)  # fmt: skip
async def test_fields_are_checked(gateway: Gateway, fields: dict[str, Any], status: int) -> None:
    """Wrong values are a 400 in the dialect's envelope; null and the unknown are no fault."""
    found, reply = await gateway.post(MESSAGES, BODY | fields)
    assert found == status, reply
    if status != 200:
        assert reply["type"] == "error"
        assert reply["request_id"]


async def test_a_stop_sequence_is_told(gateway: Gateway) -> None:
    """The answer ends before it, and says which one it was, streamed or not."""
    body = BODY | {"stop_sequences": ["three", "two"]}
    _, reply = await gateway.post(MESSAGES, body)
    assert reply["content"] == [{"text": "one ", "type": "text"}]
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "two")
    stream = await events(gateway, body)
    assert joined(stream) == [{"type": "text", "text": "one "}]
    assert stream[-2][1]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "two"}


async def test_a_limit_is_told(gateway: Gateway) -> None:
    """An answer that max_tokens cuts says so; nothing at all is one of no tokens."""
    _, reply = await gateway.post(MESSAGES, BODY | {"max_tokens": 1})
    assert (reply["stop_reason"], reply["content"]) == (
        "max_tokens",
        [{"text": "one", "type": "text"}],
    )
    _, reply = await gateway.post(MESSAGES, BODY | {"max_tokens": 0})
    assert (reply["stop_reason"], reply["content"]) == ("max_tokens", [])


async def test_a_full_context_is_told(tmp_path: Path) -> None:
    """Where the model's context ends the answer before max_tokens, that is the reason."""
    script = ["a", FinishReason.LENGTH]
    whole, stream = await scripted(tmp_path, *script, max_tokens=5000)
    assert whole["stop_reason"] == "model_context_window_exceeded"
    assert stream[-2][1]["delta"]["stop_reason"] == "model_context_window_exceeded"


async def test_calls_become_blocks(tmp_path: Path) -> None:
    """Text and calls are blocks in the order they came, whole and streamed alike."""
    script = ["I look. ", CALL[:20], CALL[20:], "\n", CALL.replace("Rome", "Oslo"),
              FinishReason.STOP]  # fmt: skip
    whole, stream = await scripted(tmp_path, *script, tools=[TOOL])
    for blocks, reason in (
        (whole["content"], whole["stop_reason"]),
        (joined(stream), stream[-2][1]["delta"]["stop_reason"]),
    ):
        assert reason == "tool_use"
        assert [block["type"] for block in blocks] == ["text", "tool_use", "tool_use"]
        assert [block["input"]["city"] for block in blocks[1:]] == ["Rome", "Oslo"]
        ids = {block["id"] for block in blocks[1:]}
        assert len(ids) == 2
        assert all(each.startswith("toolu_") for each in ids)


async def test_one_call_at_a_time_may_be_asked_for(tmp_path: Path) -> None:
    """With disable_parallel_tool_use only the first call is told."""
    script = [CALL, CALL.replace("Rome", "Oslo"), FinishReason.STOP]
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    whole, stream = await scripted(tmp_path, *script, tools=[TOOL], tool_choice=choice)
    assert [block["input"] for block in whole["content"]] == [{"city": "Rome"}]
    assert len(joined(stream)) == 1


@pytest.mark.parametrize(
    ("choice", "is_bound"),
    [({"type": "auto"}, False), ({"type": "none"}, False), ({"type": "any"}, True),
     ({"type": "tool", "name": "weather"}, True)],
)  # fmt: skip
async def test_a_call_can_be_required(
    tmp_path: Path, choice: dict[str, Any], is_bound: bool
) -> None:
    """`any` and `tool` put the answer under a grammar; `none` reads no calls."""
    write_chat_tokenizer(tmp_path)
    use_template(tmp_path)
    backend = ScriptedBackend(tmp_path, [[CALL, FinishReason.STOP]])
    backend.max_model_tokens = 2000
    async with running_gateway(backend) as gateway:
        _, reply = await gateway.post(MESSAGES, BODY | {"tools": [TOOL], "tool_choice": choice})
    assert (backend.requests[0].sampling.grammar is not None) is is_bound
    kinds = [block["type"] for block in reply["content"]]  # type: ignore[attr-defined]
    assert kinds == (["text"] if choice["type"] == "none" else ["tool_use"])


async def test_a_call_cut_short_has_no_input(tmp_path: Path) -> None:
    """Arguments that max_tokens cut are no JSON; whole answers leave them empty."""
    script = [CALL[:55], FinishReason.LENGTH]
    choice = {"type": "tool", "name": "weather"}
    whole, stream = await scripted(tmp_path, *script, tools=[TOOL], tool_choice=choice)
    assert whole["content"][0]["input"] == {}
    assert whole["stop_reason"] == "max_tokens"
    partial = [data["delta"]["partial_json"] for name, data in stream if "delta" in name
               and "partial_json" in data["delta"]]  # fmt: skip
    assert CALL[:55].endswith("".join(partial))


async def test_errors_are_the_clients_own_exceptions(tmp_path: Path) -> None:
    """Each kind of error is the class that the official client has for it."""
    write_chat_tokenizer(tmp_path)
    scripts: list[Script] = [[FailureKind.OVERLOADED], ["a", FailureKind.WORKER_DIED]]
    backend = ScriptedBackend(tmp_path, scripts)
    async with running_gateway(backend) as gateway, anthropic_client(gateway) as client:
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.messages.create(**BODY | {"messages": [{"role": "user", "content": [
                {"type": "image", "source": {"type": "url", "url": "http://x"}}]}]})  # fmt: skip
        assert caught.value.request_id
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(**BODY | {"model": "other"})
        with pytest.raises(anthropic.APIStatusError) as full:
            await client.messages.create(**BODY)
        assert full.value.status_code == 529
        with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
            async with client.messages.stream(**BODY) as stream:
                [piece async for piece in stream.text_stream]


async def test_a_body_too_large_is_refused(tmp_path: Path) -> None:
    """The status is 413 and the type the dialect's own."""
    write_chat_tokenizer(tmp_path)
    async with running_gateway(EchoBackend(tmp_path), max_body_bytes=500) as gateway:
        status, reply = await gateway.post(MESSAGES, BODY | {"system": "x" * 600})
    error: Any = reply["error"]
    assert (status, error["type"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [({"type": "ephemeral"}, 300.0), ({"type": "ephemeral", "ttl": "1h"}, 3600.0)],
)
async def test_what_is_marked_is_retained(
    tmp_path: Path, asked: dict[str, Any], seconds: float
) -> None:
    """The engine is asked to keep the marked prefix, in whole blocks, for its time."""
    write_chat_tokenizer(tmp_path)
    backend = ScriptedBackend(tmp_path, [["a", FinishReason.STOP]])
    backend.max_model_tokens, backend.written_tokens = 2000, 2000
    system = [{"type": "text", "text": "hello world " * 10, "cache_control": asked}]
    async with running_gateway(backend) as gateway:
        _, reply = await gateway.post(MESSAGES, BODY | {"system": system})
    (kept,) = backend.requests[0].retain
    assert kept == Retain(kept.n_tokens, seconds)
    n_prompt = len(backend.requests[0].token_ids) // 4
    assert n_prompt - 32 < kept.n_tokens < n_prompt
    assert kept.n_tokens % 16 == 0
    usage: Any = reply["usage"]
    assert usage["cache_creation_input_tokens"] == kept.n_tokens


async def test_a_required_format_binds_the_answer(tmp_path: Path) -> None:
    """output_config.format is a schema that the answer follows."""
    write_chat_tokenizer(tmp_path)
    backend = ScriptedBackend(tmp_path, [["{}", FinishReason.STOP]])
    schema = {"type": "object", "additionalProperties": False}
    config = {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    async with running_gateway(backend) as gateway:
        status, _ = await gateway.post(MESSAGES, BODY | {"output_config": config})
    assert status == 200
    grammar = backend.requests[0].sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.text) == schema


async def test_the_official_client_lists_models(gateway: Gateway) -> None:
    """GET /v1/models is told in the dialect of whoever asks."""
    async with anthropic_client(gateway) as client:
        listed = [model.id async for model in client.models.list()]
        one = await client.models.retrieve(MODEL)
        with pytest.raises(anthropic.NotFoundError):
            await client.models.retrieve("other")
    assert listed == [one.id] == [MODEL]
    assert (one.type, one.display_name) == ("model", MODEL)
    assert [model.id async for model in gateway.openai.models.list()] == [MODEL]
