"""/v1/responses through the official client, and its stream event by event."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.api.responses_models import ResponseBody
from gateway.backends.echo import EchoBackend
from prefixcache.types import FailureKind, FinishReason
from tests.support.bodies import error_of
from tests.support.gateways import MODEL, Gateway, echo_backend, running_gateway
from tests.support.scripted import Script, ScriptedBackend
from tests.support.tokenizers import write_chat_tokenizer

PATH = "/v1/responses"
TEXT = "one two three"
BODY: dict[str, Any] = {"model": MODEL, "input": TEXT}
REFUSAL = {"type": "refusal", "refusal": "no"}
PART = {"type": "input_text", "text": "e"}
IMAGE = {"type": "input_image", "image_url": "https://example.org/a.png"}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(echo_backend(tmp_path)) as running:
        yield running


async def create(gateway: Gateway, **fields: Any) -> Any:
    make: Any = gateway.openai.responses.create
    return await make(**({"model": MODEL, "input": TEXT} | fields))


async def events_of(gateway: Gateway, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of a stream: the name on its own line, and the data."""
    async with gateway.http.post(
        gateway.url + PATH, json=BODY | {"stream": True} | fields
    ) as reply:
        assert reply.status == 200
        frames = (await reply.text()).split("\n\n")
    assert frames.pop() == ""
    pairs = [frame.split("\n") for frame in frames]
    assert all(
        first.startswith("event: ") and second.startswith("data: ") for first, second in pairs
    )
    return [(first[7:], json.loads(second[6:])) for first, second in pairs]


def scripted(folder: Path, *scripts: Script) -> ScriptedBackend:
    write_chat_tokenizer(folder)
    backend = ScriptedBackend(folder, scripts)
    backend.max_model_tokens = 2000
    return backend


async def test_a_response_is_answered(gateway: Gateway) -> None:
    """The client reads text, status and usage where it looks for them."""
    reply = await create(gateway, temperature=0.5, metadata={"a": "b"}, user="u")
    assert reply.object == "response"
    assert (reply.status, reply.output_text) == ("completed", TEXT)
    (item,) = reply.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert reply.usage.input_tokens == 3
    assert reply.usage.input_tokens_details.cached_tokens == 0
    assert (reply.usage.output_tokens, reply.usage.total_tokens) == (3, 6)
    assert reply.usage.output_tokens_details.reasoning_tokens == 0
    assert (reply.temperature, reply.metadata, reply.user) == (0.5, {"a": "b"}, "u")
    assert (reply.tool_choice, reply.tools, reply.parallel_tool_calls) == ("auto", [], True)
    assert reply.text.format.type == "text"
    assert reply.error is None
    assert reply.completed_at >= reply.created_at


async def test_a_stream_has_every_event_in_order(gateway: Gateway) -> None:
    """Each step of an item is told, numbered without a gap, and the last event has it all."""
    events = await events_of(gateway)
    assert [name for name, _ in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(data["type"] == name for name, data in events)
    assert "".join(data.get("delta", "") for _, data in events) == TEXT
    assert events[0][1]["response"]["status"] == "in_progress"
    last = events[-1][1]["response"]
    assert last["output"] == [events[-2][1]["item"]]
    assert last["usage"]["output_tokens"] == 3
    assert len({data["item_id"] for _, data in events if "item_id" in data}) == 1


async def test_the_clients_stream_helper_follows(gateway: Gateway) -> None:
    """The client builds the same response from the events that an unstreamed one has."""
    whole = await create(gateway)
    async with gateway.openai.responses.stream(model=MODEL, input=TEXT) as stream:
        async for _ in stream:
            pass
        last = await stream.get_final_response()
    assert last.output_text == whole.output_text
    assert last.usage is not None
    assert last.usage.input_tokens_details.cached_tokens == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_cut_short_is_incomplete(gateway: Gateway, stream: bool) -> None:
    """max_output_tokens ends the answer with its reason, and the item says so, too."""
    if stream:
        events = await events_of(gateway, max_output_tokens=2)
        assert events[-1][0] == "response.incomplete"
        reply = events[-1][1]["response"]
    else:
        _, reply = await gateway.post(PATH, BODY | {"max_output_tokens": 2})
    assert reply["status"] == "incomplete"
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert reply["output"][0]["status"] == "incomplete"
    assert reply["output"][0]["content"][0]["text"] == "one two"


async def test_an_empty_answer_is_an_empty_message(tmp_path: Path) -> None:
    """A model that says nothing gives one message without text."""
    async with running_gateway(scripted(tmp_path, [FinishReason.STOP])) as gateway:
        reply = await create(gateway)
    assert reply.output_text == ""
    assert len(reply.output) == 1


async def test_items_are_read_as_a_conversation(tmp_path: Path) -> None:
    """Messages, calls, their outputs and instructions reach the template in its own words."""
    write_chat_tokenizer(tmp_path)
    template = (
        "{% for m in messages %}[{{ m.role }}|{{ m.content }}"
        "{% for c in m.tool_calls or [] %}|{{ c.function.name }}{{ c.function.arguments.n }}"
        "{% endfor %}|{{ m.name }}]{% endfor %}"
    )
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    items = [
        {"role": "user", "content": "a"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c"}, REFUSAL]},
        {"type": "function_call", "call_id": "x", "name": "f", "arguments": '{"n": 1}'},
        {"type": "function_call", "call_id": "y", "name": "g", "arguments": '{"n": 2}'},
        {"type": "function_call_output", "call_id": "y", "output": "d"},
        {"type": "function_call_output", "call_id": "x", "output": [PART]},
    ]
    async with running_gateway(EchoBackend(tmp_path)) as gateway:
        reply = await create(gateway, input=items, instructions="i")
    assert reply.output_text == (
        "[system|i|][user|a|][system|b|][assistant|cno|f1|g2|][tool|d|g][tool|e|f]"
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p", "variables": {"a": "b"}}}, "prompt.variables"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"safety_identifier": "x" * 129}, "safety_identifier"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"cache": {"reed": True}}, "cache"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
        ({"stream_options": {"include_obfuscation": 1}, "stream": True}, "stream_options"),
        ({"model": 5}, "model"),
    ],
    ids=str,
)
async def test_a_wrong_value_is_refused_by_name(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    """What cannot be read, or would change the answer and is not built, is a 400 that names it."""
    status, reply = await gateway.post(PATH, BODY | fields)
    assert status == 400
    assert str(error_of(reply)["param"]).startswith(param)


async def test_null_is_the_same_as_left_out(gateway: Gateway) -> None:
    """Every optional field may be null."""
    optional = set(ResponseBody.__struct_fields__) - {"model", "input"}
    status, reply = await gateway.post(PATH, BODY | dict.fromkeys(optional))
    assert (status, reply["status"]) == (200, "completed")


async def test_trouble_in_a_stream_is_its_last_event(tmp_path: Path) -> None:
    """A response that breaks off says so with what was whole, and is not kept."""
    script = ["a", "b", FailureKind.WORKER_DIED]
    async with running_gateway(scripted(tmp_path, script)) as gateway:
        events = await events_of(gateway)
        name, data = events[-1]
        assert name == "response.failed"
        assert data["sequence_number"] == len(events) - 1
        assert data["response"]["status"] == "failed"
        assert data["response"]["error"] == {
            "code": "server_error",
            "message": "as the script says",
        }
        status, _ = await gateway.get(f"{PATH}/{data['response']['id']}")
        assert status == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_trouble_before_the_first_event_has_its_own_status(
    tmp_path: Path, stream: bool
) -> None:
    """A response that is refused at once is an ordinary error, streamed or not."""
    async with running_gateway(scripted(tmp_path, [FailureKind.OVERLOADED])) as gateway:
        with pytest.raises(openai.RateLimitError):
            await create(gateway, stream=stream)


async def test_logprobs_come_with_their_text(gateway: Gateway) -> None:
    """include asks for them, top_logprobs for others beside them; streamed or not."""
    include = ["message.output_text.logprobs"]
    reply = await create(gateway, include=include, top_logprobs=1)
    scores = reply.output[0].content[0].logprobs
    assert [score.token for score in scores] == ["one", " two", " three"]
    assert [len(score.top_logprobs) for score in scores] == [1, 1, 1]
    events = await events_of(gateway, include=include)
    streamed = [
        score for _, data in events for score in data.get("logprobs", ()) if "delta" in data
    ]
    assert [score["token"] for score in streamed] == ["one", " two", " three"]
    (done,) = [data for name, data in events if name == "response.output_text.done"]
    assert done["logprobs"] == streamed
    assert (await create(gateway)).output[0].content[0].logprobs == []


async def test_deltas_can_be_padded(gateway: Gateway) -> None:
    """With include_obfuscation deltas of any length have sizes that are multiples of 64 bytes."""
    body = BODY | {"stream": True, "stream_options": {"include_obfuscation": True}}
    async with gateway.http.post(gateway.url + PATH, json=body) as reply:
        lines = (await reply.text()).splitlines()
    deltas = [line[6:] for line in lines if "output_text.delta" in line and line[0] == "d"]
    assert len(deltas) == 3
    assert all(len(delta) % 64 == 0 for delta in deltas)
    assert all(json.loads(delta)["obfuscation"] for delta in deltas)


async def test_prewarm_reads_the_prompt_and_says_nothing(gateway: Gateway) -> None:
    """The next response finds what the prewarming one has read."""
    first = await create(gateway, prompt_cache_options={"prewarm": True})
    assert (first.status, first.output, first.usage.output_tokens) == ("completed", [], 0)
    second = await create(gateway)
    assert second.usage.input_tokens_details.cached_tokens == 2


async def test_input_tokens_are_counted(gateway: Gateway) -> None:
    """The count is the one that usage will show, instructions included."""
    counted = await gateway.openai.responses.input_tokens.count(model=MODEL, input=TEXT)
    assert counted.input_tokens == 3
    assert (await create(gateway)).usage.input_tokens_details.cached_tokens == 0
