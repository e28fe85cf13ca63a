"""The official client, sync and async, against a server with a model, endpoint by endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.models import write_tiny_model
from tests.support.servers import Server, running_server

SYSTEM = "You are a helpful assistant. Answer in one short sentence, and kindly. " * 3
ASK: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Say hello."}]
COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}

ROOM = 220  # tokens: no call and no object of these schemas is longer, white space and all


@pytest.fixture(scope="module", params=["tiny", pytest.param("default", marks=pytest.mark.model)])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    if request.param == "default":
        folder: Path = request.getfixturevalue("default_model")
    else:
        folder = tmp_path_factory.mktemp("models") / "little"
        write_tiny_model(folder)
    with running_server(["--model", str(folder), "--kv-memory", "64MiB"]) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: OpenAI) -> str:
    (found,) = client.models.list()
    return found.id


def test_chat(client: OpenAI, model: str) -> None:
    """Whole and streamed answers agree, and the second finds the first one's prompt."""
    fields: Any = {"model": model, "messages": ASK, "max_tokens": 8, "temperature": 0}
    whole = client.chat.completions.create(**fields)
    stream = client.chat.completions.create(
        **fields, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    first, second = whole.usage, chunks[-1].usage
    assert first is not None
    assert second is not None
    assert first.prompt_tokens_details is not None
    assert second.prompt_tokens_details is not None
    assert second.prompt_tokens_details.cached_tokens is not None
    assert second.prompt_tokens_details.cached_tokens >= first.prompt_tokens - 16
    assert {chunk.system_fingerprint for chunk in chunks} == {whole.system_fingerprint}


def test_completions(client: OpenAI, model: str) -> None:
    """A plain prompt goes on, whole and streamed, with log-probabilities."""
    fields: Any = {"model": model, "prompt": "Once upon", "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(**fields, logprobs=2)
    chunks = list(client.completions.create(**fields, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    scores = whole.choices[0].logprobs
    assert scores is not None
    assert scores.tokens is not None
    assert "".join(scores.tokens) == whole.choices[0].text
    assert all(logprob <= 0 for logprob in scores.token_logprobs or ())


def test_responses(client: OpenAI, model: str) -> None:
    """Whole and streamed responses agree, and one goes on from the other with all of it cached."""
    fields: Any = {"model": model, "instructions": SYSTEM, "input": "Say hello."}
    options: Any = {"max_output_tokens": 24, "temperature": 0}
    whole = client.responses.create(**fields, **options)
    with client.responses.stream(**fields, **options) as stream:
        events = [event.type for event in stream]
    assert events[0] == "response.created"
    assert events[-1] in ("response.completed", "response.incomplete")
    again = client.responses.retrieve(whole.id)
    assert again.output_text == whole.output_text
    following = client.responses.create(
        **(fields | {"input": "Again."}), **options, previous_response_id=whole.id
    )
    assert whole.usage is not None
    assert following.usage is not None
    found = following.usage.input_tokens_details.cached_tokens
    if "\ufffd" not in whole.output_text:
        computed = whole.usage.total_tokens - 1
        assert found >= computed // 16 * 16
    assert found >= (whole.usage.input_tokens - 1) // 16 * 16


def test_tools(client: OpenAI, model: str) -> None:
    """A forced call follows its schema in chat and in responses."""
    function = {"name": "weather", "parameters": PARAMETERS, "strict": True}
    chat_tools: Any = [{"type": "function", "function": function}]
    flat_tools: Any = [{"type": "function", **function}]
    chat: Any = client.chat.completions.create(
        model=model,
        messages=ASK,
        tools=chat_tools,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=ROOM,
    )
    (call,) = chat.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    assert chat.choices[0].finish_reason == "tool_calls"
    response: Any = client.responses.create(
        model=model,
        input="Say hello.",
        tools=flat_tools,
        tool_choice={"type": "function", "name": "weather"},
        max_output_tokens=ROOM,
    )
    (item,) = response.output
    assert (item.type, item.name, item.status) == ("function_call", "weather", "completed")
    assert json.loads(item.arguments)["city"] in ("Rome", "Oslo")


def test_structured_output(client: OpenAI, model: str) -> None:
    """A schema is followed to the letter in chat and in responses."""
    schema: Any = {"name": "colour", "schema": COLOUR, "strict": True}
    chat = client.chat.completions.create(
        model=model,
        messages=ASK,
        response_format={"type": "json_schema", "json_schema": schema},
        max_tokens=ROOM,
    )
    assert json.loads(chat.choices[0].message.content or "")["colour"] in ("red", "blue")
    text: Any = {"format": {"type": "json_schema", **schema}}
    response = client.responses.create(
        model=model, input="Say hello.", text=text, max_output_tokens=ROOM
    )
    assert json.loads(response.output_text)["colour"] in ("red", "blue")


def test_log_probabilities(client: OpenAI, model: str) -> None:
    """Each token has its own and the asked number of others, in chat and in responses."""
    chat = client.chat.completions.create(
        model=model, messages=ASK, logprobs=True, top_logprobs=3, max_tokens=4
    )
    scores = chat.choices[0].logprobs
    assert scores is not None
    assert [len(token.top_logprobs) for token in scores.content or ()] == [3] * 4
    response: Any = client.responses.create(
        model=model,
        input="Say hello.",
        include=["message.output_text.logprobs"],
        top_logprobs=3,
        max_output_tokens=4,
    )
    logprobs = response.output[0].content[0].logprobs
    assert [len(token.top_logprobs) for token in logprobs] == [3] * 4


def test_prompts_are_prewarmed(client: OpenAI, model: str) -> None:
    """A prompt that was read ahead is found when it is asked."""
    fields: Any = {"model": model, "instructions": f"Prewarmed. {SYSTEM}", "input": "Say hello."}
    ahead = client.responses.create(**fields, prompt_cache_options={"prewarm": True})
    assert ahead.output == []
    asked = client.responses.create(**fields, max_output_tokens=2)
    assert asked.usage is not None
    found = asked.usage.input_tokens_details.cached_tokens
    assert found >= (asked.usage.input_tokens - 1) // 16 * 16 > 0


def test_headers(client: OpenAI, model: str) -> None:
    """Raw answers carry what OpenAI's clients log."""
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=ASK,
        max_tokens=1,
        extra_headers={"X-Request-Id": "mine-1"},
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.request_id == "mine-1"
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert raw.headers["openai-version"]
    assert raw.parse().choices


def test_errors_have_their_classes(client: OpenAI, model: str) -> None:
    """Each kind of refusal raises the client's own exception."""
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="x")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=ASK, temperature=3)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_none")
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=model, input="x", background=True)
    assert caught.value.code == "unsupported_parameter"


async def test_the_async_client(server: Server, model: str) -> None:
    """Everything above is the same for the async client: one answer of each kind."""
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        chat = await client.chat.completions.create(model=model, messages=ASK, max_tokens=2)
        text = await client.completions.create(model=model, prompt="Once", max_tokens=2)
        response = await client.responses.create(model=model, input="Hi.", max_output_tokens=2)
        stream = await client.responses.create(
            model=model, input="Hi.", max_output_tokens=2, stream=True
        )
        events = [event.type async for event in stream]
    assert chat.usage is not None
    assert text.usage is not None
    assert response.usage is not None
    counts = (chat.usage.completion_tokens, text.usage.completion_tokens)
    assert (*counts, response.usage.output_tokens) == (2, 2, 2)
    assert events[-1] == "response.incomplete"
