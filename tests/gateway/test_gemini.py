"""Gemini's routes: what each field does, and how answers are written, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from gateway.backends.echo import EchoBackend
from prefixcache.types import FailureKind, FinishReason, GrammarKind
from tests.support.anthropics import use_template
from tests.support.bodies import CHAT
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import write_chat_tokenizer

ROOT = f"/v1beta/models/{MODEL}"
GENERATE, STREAM, COUNT = (
    f"{ROOT}:{action}" for action in ("generateContent", "streamGenerateContent", "countTokens")
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
WEATHER = {
    "name": "weather",
    "description": "The weather",
    "parameters": {
        "type": "OBJECT",
        "properties": {"city": {"type": "STRING", "nullable": True}, "max_days": {
            "type": "INTEGER", "format": "int32"}},
        "propertyOrdering": ["max_days", "city"],
    },
}  # fmt: skip
TOOLS = [{"functionDeclarations": [WEATHER]}]


def turn(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "parts": [{"text": text}]}


BODY: dict[str, Any] = {"contents": [turn("one two")]}


@asynccontextmanager
async def google_client(gateway: Gateway) -> AsyncIterator[Any]:
    """Yield the official client's asynchronous half, closed afterwards."""
    options = types.HttpOptions(base_url=gateway.url)
    client = genai.Client(api_key="none", http_options=options)
    try:
        yield client.aio
    finally:
        await client.aio.aclose()
        client.close()


@pytest.fixture
async def chat(tmp_path: Path) -> AsyncIterator[Gateway]:
    write_chat_tokenizer(tmp_path)
    use_template(tmp_path)
    async with running_gateway(EchoBackend(tmp_path)) as running:
        yield running


async def shown(gateway: Gateway, **fields: Any) -> str:
    """Return the prompt that the model was shown, which is what an echo answers."""
    status, reply = await gateway.post(GENERATE, BODY | fields)
    assert status == 200, reply
    return text_of(reply)


def text_of(reply: Any) -> str:
    return "".join(part.get("text", "") for part in parts_of(reply))


def parts_of(reply: Any) -> list[dict[str, Any]]:
    return list(reply["candidates"][0]["content"]["parts"])


async def streamed(gateway: Gateway, body: dict[str, Any], *, events: bool) -> list[Any]:
    """Return the chunks of a stream."""
    url = gateway.url + STREAM + ("?alt=sse" if events else "")
    async with gateway.http.post(url, json=body) as response:
        assert response.status == 200
        content_type, text = response.headers["Content-Type"], await response.text()
    if not events:
        assert content_type == "application/json"
        return list(json.loads(text))
    assert content_type.startswith("text/event-stream")
    frames = text.split("\r\n\r\n")
    assert frames.pop() == ""
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


async def said(folder: Path, *script: Any, **fields: Any) -> tuple[Any, list[Any], ScriptedBackend]:
    """Return the whole answer, the chunks and the backend when the model says `script`."""
    write_chat_tokenizer(folder)
    use_template(folder)
    backend = ScriptedBackend(folder, [[*script]] * 2)
    backend.max_model_tokens = 2000
    async with running_gateway(backend) as gateway:
        status, whole = await gateway.post(GENERATE, BODY | fields)
        assert status == 200, whole
        return whole, await streamed(gateway, BODY | fields, events=True), backend


async def test_the_official_client_is_answered(gateway: Gateway) -> None:
    """A candidate with its text, why it ended, and usage."""
    async with google_client(gateway) as client:
        reply = await client.models.generate_content(model=MODEL, contents="one two")
    assert reply.text == "one two"
    assert reply.candidates[0].finish_reason == types.FinishReason.STOP
    assert reply.model_version == MODEL
    usage = reply.usage_metadata
    assert (usage.prompt_token_count, usage.candidates_token_count) == (2, 2)
    assert usage.total_token_count == 4


async def test_the_official_client_streams(gateway: Gateway) -> None:
    """The texts of the chunks are the answer; the last one says why it ended."""
    async with google_client(gateway) as client:
        stream = await client.models.generate_content_stream(model=MODEL, contents="one two")
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.text for chunk in chunks) == "one two"
    assert [c.candidates[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].candidates[0].finish_reason == types.FinishReason.STOP
    assert chunks[-1].usage_metadata.candidates_token_count == 2


async def test_the_official_client_counts_and_lists(gateway: Gateway) -> None:
    """Counts of tokens, the list of models, and one of them."""
    async with google_client(gateway) as client:
        counted = await client.models.count_tokens(model=MODEL, contents="one two")
        listed = [model.name async for model in await client.models.list()]
        one = await client.models.get(model=MODEL)
        with pytest.raises(errors.ClientError) as caught:
            await client.models.get(model="other")
    assert counted.total_tokens == 2
    assert listed == [one.name] == [f"models/{MODEL}"]
    assert one.input_token_limit > 0
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")


@pytest.mark.parametrize("events", [True, False])
async def test_streams_say_what_whole_answers_say(gateway: Gateway, events: bool) -> None:
    """Events and the items of an array are the same chunks, and together the whole answer."""
    config = {"candidateCount": 2, "temperature": 0, "responseLogprobs": True, "logprobs": 1}
    body = BODY | {"generationConfig": config, "cacheSalt": "s"}
    await gateway.post(GENERATE, body)
    _, reply = await gateway.post(GENERATE, body)
    whole: Any = reply
    chunks = await streamed(gateway, body, events=events)
    for index in range(2):
        mine = [chunk["candidates"][0] for chunk in chunks]
        mine = [candidate for candidate in mine if candidate["index"] == index]
        assert "".join(part["text"] for c in mine for part in c["content"]["parts"]) == "one two"
        assert [c["finishReason"] for c in mine if "finishReason" in c] == ["STOP"]
        told = [token for c in mine if "logprobsResult" in c
                for token in c["logprobsResult"]["chosenCandidates"]]  # fmt: skip
        assert told == whole["candidates"][index]["logprobsResult"]["chosenCandidates"]
        assert [token["token"] for token in told] == ["one", " two"]
    assert chunks[-1]["usageMetadata"] == whole["usageMetadata"]
    assert whole["usageMetadata"]["cachedContentTokenCount"] == 1


async def test_the_prompt_is_that_of_openais_form(chat: Gateway) -> None:
    """The same conversation has the same tokens in both dialects."""
    contents = [turn("one"), turn("two", "model"), turn("three")]
    mine = await shown(chat, contents=contents, systemInstruction=turn("hello world"))
    turns = [{"role": "system", "content": "hello world"}, {"role": "user", "content": "one"},
             {"role": "assistant", "content": "two"},
             {"role": "user", "content": "three"}]  # fmt: skip
    _, reply = await chat.post(CHAT, {"model": MODEL, "messages": turns})
    choices: Any = reply["choices"]
    assert choices[0]["message"]["content"] == mine


async def test_what_a_stream_was_kept_as_is_one_turn(chat: Gateway) -> None:
    """Google's chats keep each chunk as a content of its own; the model said them in one turn."""
    pieces = [turn(text, "model") for text in ("", "three", " four")]
    parts = {"role": "model", "parts": [{"text": "three"}, {"text": " four"}]}
    ask = turn("one two")
    one = await shown(chat, contents=[ask, parts, ask])
    assert await shown(chat, contents=[ask, *pieces, ask]) == one
    assert await shown(chat, contents=[ask, *pieces]) == await shown(chat, contents=[ask, parts])


async def test_snake_case_is_read_as_camel_case(chat: Gateway) -> None:
    """Both spellings are the same request, and what is the client's own keeps its keys."""
    camel = {
        "contents": [turn("hi"),
            {"role": "model", "parts": [{"functionCall": {
                "name": "weather", "args": {"max_days": 2}}}]},
            {"role": "user", "parts": [{"functionResponse": {
                "name": "weather", "response": {"the_sky": "blue"}}}]}],
        "systemInstruction": {"parts": [{"text": "s"}]},
        "tools": TOOLS,
        "toolConfig": {"functionCallingConfig": {"mode": "NONE"}},
        "generationConfig": {"maxOutputTokens": "900", "stopSequences": ["<never>"]},
    }  # fmt: skip
    snake = json.loads(
        json.dumps(camel)
        .replace('functionCall"', 'function_call"')
        .replace('functionResponse"', 'function_response"')
        .replace("functionDeclarations", "function_declarations")
        .replace("systemInstruction", "system_instruction")
        .replace("toolConfig", "tool_config")
        .replace("functionCallingConfig", "function_calling_config")
        .replace("generationConfig", "generation_config")
        .replace("maxOutputTokens", "max_output_tokens")
        .replace("stopSequences", "stop_sequences")
    )
    assert snake != camel
    text = await shown(chat, **camel)
    assert text == await shown(chat, **snake)
    assert '{"name": "weather", "arguments": {"max_days": 2}}' in text
    assert 'tool\n{"the_sky": "blue"} of weather' in text


async def test_schemas_are_shown_as_json_schemas(chat: Gateway) -> None:
    """Types are lower case, null is a type, and properties have the order that was asked for."""
    text = await shown(chat, tools=TOOLS, toolConfig={"functionCallingConfig": {"mode": "NONE"}})
    assert text.startswith(
        '<tools>[{"type": "function", "function": {"name": "weather", "description": "The weather",'
        ' "parameters": {"type": "object", "properties": {"city": {"type": ["string", "null"]},'
        ' "max_days": {"type": "integer"}}}}}]</tools>'
    )


async def test_calls_become_parts(tmp_path: Path) -> None:
    """A call is one part, told when it is complete, whole and streamed alike."""
    script = ["I look. ", CALL[:20], CALL[20:], "\n", CALL.replace("Rome", "Oslo"),
              FinishReason.STOP]  # fmt: skip
    whole, chunks, _ = await said(tmp_path, *script, tools=TOOLS)
    told = [part for chunk in chunks for part in parts_of(chunk) if part != {"text": ""}]
    for parts in (parts_of(whole), told):
        assert "".join(part.get("text", "") for part in parts) == "I look."
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        assert [(call["name"], call["args"]["city"]) for call in calls] == [
            ("weather", "Rome"), ("weather", "Oslo")]  # fmt: skip
    assert whole["candidates"][0]["finishReason"] == "STOP"


@pytest.mark.parametrize(
    ("config", "is_bound", "is_call"),
    [
        ({}, False, True),
        ({"mode": "AUTO"}, False, True),
        ({"mode": "VALIDATED"}, False, True),
        ({"mode": "NONE"}, False, False),
        ({"mode": "ANY"}, True, True),
        ({"mode": "ANY", "allowedFunctionNames": ["weather"]}, True, True),
    ],
)
async def test_calls_can_be_required_or_not_wanted(
    tmp_path: Path, config: dict[str, Any], is_bound: bool, is_call: bool
) -> None:
    """ANY puts the answer under a grammar, NONE reads no calls."""
    fields = {"tools": TOOLS, "toolConfig": {"functionCallingConfig": config}}
    whole, _, backend = await said(tmp_path, CALL, FinishReason.STOP, **fields)
    assert (backend.requests[0].sampling.grammar is not None) is is_bound
    assert ("functionCall" in parts_of(whole)[0]) is is_call


async def test_the_config_reaches_the_engine(tmp_path: Path) -> None:
    """Each field of generationConfig is what its name says."""
    config = {"temperature": 0.5, "topP": 0.9, "topK": 40.0, "maxOutputTokens": 7, "seed": 3,
              "stopSequences": ["x"], "presencePenalty": 0.25, "frequencyPenalty": 0.5,
              "candidateCount": 1, "responseLogprobs": True, "logprobs": 2,
              "responseMimeType": "application/json",
              "responseSchema": {"type": "INTEGER", "minimum": 1}}  # fmt: skip
    _, _, backend = await said(tmp_path, "1", FinishReason.LENGTH, generationConfig=config)
    sampling = backend.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert (sampling.max_tokens, sampling.seed, sampling.stop) == (7, 3, ("x",))
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, 0.5)
    assert sampling.top_scores == 2
    assert sampling.grammar is not None
    assert json.loads(sampling.grammar.text) == {"type": "integer", "minimum": 1}


async def test_a_choice_of_texts_binds_the_answer(tmp_path: Path) -> None:
    """text/x.enum has the answer be one of the schema's texts."""
    config = {"responseMimeType": "text/x.enum",
              "responseSchema": {"type": "STRING", "enum": ["yes", "no"]}}  # fmt: skip
    _, _, backend = await said(tmp_path, "yes", FinishReason.STOP, generationConfig=config)
    grammar = backend.requests[0].sampling.grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.text)) == (GrammarKind.CHOICE, ["yes", "no"])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"contents": []}, "contents"),
        ({"contents": None}, "contents"),
        ({"contents": [{"role": "user", "parts": [{"inlineData": {"data": "x"}}]}]},
         "contents[0].parts[0].inlineData"),
        ({"contents": [{"role": "user", "parts": [{"file_data": {}}]}]},
         "contents[0].parts[0].fileData"),
        ({"contents": [{"role": "user", "parts": [{}]}]}, "contents[0].parts[0]"),
        ({"contents": [turn("a", "system")]}, "contents[0].role"),
        ({"tools": [{"googleSearch": {}}]}, "tools[0].googleSearch"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "toolConfig"),
        ({"tools": TOOLS, "toolConfig": {"functionCallingConfig": {
            "mode": "ANY", "allowedFunctionNames": ["other"]}}}, "'other'"),
        ({"tools": TOOLS, "toolConfig": {"functionCallingConfig": {
            "mode": "AUTO", "allowedFunctionNames": ["weather"]}}}, "allowedFunctionNames"),
        ({"generationConfig": {"candidateCount": 99}}, "candidateCount"),
        ({"generationConfig": {"candidateCount": 0}}, "candidateCount"),
        ({"generationConfig": {"topK": 1.5}}, "topK"),
        ({"generationConfig": {"temperature": 3}}, "temperature"),
        ({"generationConfig": {"logprobs": 3}}, "responseLogprobs"),
        ({"generationConfig": {"stopSequences": list("abcde")}}, "stopSequences"),
        ({"generationConfig": {"responseSchema": {"type": "STRING"}}}, "responseMimeType"),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "responseModalities"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "enum"),
        ({"tools": [{"functionDeclarations": [{"name": "f", "parameters": {
            "properties": 5}}]}]}, "properties"),
    ],
)  # fmt: skip
async def test_what_cannot_be_done_is_refused_by_name(
    gateway: Gateway, fields: dict[str, Any], named: str
) -> None:
    """A wrong or an unbuilt field is a 400 in the dialect's envelope that names it."""
    status, reply = await gateway.post(GENERATE, BODY | fields)
    error: Any = reply["error"]
    assert (status, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT"), error
    assert named in error["message"]


async def test_what_others_ignore_is_ignored(gateway: Gateway) -> None:
    """Null, safety settings, thinking and the unheard-of change nothing."""
    fields = {"safetySettings": [{"category": "X"}], "labels": {"a_b": "c"}, "tools": None,
              "toolConfig": None, "systemInstruction": None, "cachedContent": None,
              "generationConfig": {"thinkingConfig": {"thinkingBudget": 0}, "seed": None,
                                   "responseModalities": ["TEXT"]}, "unheardOf": 1}  # fmt: skip
    assert await shown(gateway, **fields) == "one two"


async def test_an_unknown_model_is_not_found(gateway: Gateway) -> None:
    """The path names the model."""
    for action in ("generateContent", "countTokens", "streamGenerateContent"):
        status, reply = await gateway.post(f"/v1beta/models/other:{action}", BODY)
        error: Any = reply["error"]
        assert (status, error["status"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("events", [True, False])
async def test_a_stream_that_fails_says_so(tmp_path: Path, events: bool) -> None:
    """What goes wrong later is the stream's last item, which the client raises."""
    write_chat_tokenizer(tmp_path)
    backend = ScriptedBackend(tmp_path, [["a", FailureKind.WORKER_DIED]] * 2)
    async with running_gateway(backend) as gateway:
        chunks = await streamed(gateway, BODY, events=events)
        assert chunks[-1]["error"]["status"] == "UNAVAILABLE"
        async with google_client(gateway) as client:
            stream = await client.models.generate_content_stream(model=MODEL, contents="a")
            with pytest.raises(errors.APIError):
                [chunk async for chunk in stream]


async def test_counts_are_those_of_answers(chat: Gateway) -> None:
    """countTokens of a whole request is the promptTokenCount of its answer."""
    request = {"model": f"models/{MODEL}", "contents": [turn("one")], "tools": TOOLS,
               "systemInstruction": turn("s")}  # fmt: skip
    _, counted = await chat.post(COUNT, {"generateContentRequest": request})
    _, reply = await chat.post(GENERATE, request)
    usage: Any = reply["usageMetadata"]
    assert counted["totalTokens"] == usage["promptTokenCount"]
    assert usage["cachedContentTokenCount"] == 0
