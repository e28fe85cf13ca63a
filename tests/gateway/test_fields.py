"""What each field of a body does, and what becomes of wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.bodies import CHAT, CHAT_BODY, TEXT, TEXT_BODY, error_of
from tests.support.gateways import MODEL, Gateway, echo_backend, running_gateway

OPTIONAL = (
    "temperature",
    "top_p",
    "top_k",
    "n",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "logit_bias",
    "seed",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "user",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_p",
    "min_tokens",
    "logprobs",
    "top_logprobs",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "max_tokens",
    "max_completion_tokens",
    "cache_salt",
    "cache",
    "priority",
    "deadline_seconds",
    "ignore_eos",
    "echo",
    "suffix",
    "best_of",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
)
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    10**9,
    1.5,
    "",
    "x",
    [],
    {},
    [[]],
    {"a": {"b": [1]}},
    [None],
    [{}],
    2**70,
    "\x00",
)


async def test_null_is_the_same_as_left_out(gateway: Gateway) -> None:
    """Every optional field may be null, one by one and all at once."""
    for path, body in ((CHAT, CHAT_BODY), (TEXT, TEXT_BODY)):
        bodies = [{**body, name: None} for name in OPTIONAL] + [body | dict.fromkeys(OPTIONAL)]
        assert {(await gateway.post(path, each))[0] for each in bodies} == {200}


async def test_no_value_of_any_field_is_our_fault(gateway: Gateway) -> None:
    """Whatever a field holds, the answer is 200 or a 4xx in the envelope, never a 5xx."""
    for path, body in ((CHAT, CHAT_BODY), (TEXT, TEXT_BODY)):
        for name in (*OPTIONAL, "model", "messages", "prompt", "unknown_field"):
            for value in ODD_VALUES:
                async with gateway.http.post(
                    gateway.url + path, json={**body, name: value}
                ) as reply:
                    assert reply.status < 500, (path, name, value)
                    if reply.status != 200:
                        assert error_of(await reply.json())["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -0.1),
        ("top_p", 1.5),
        ("n", 0),
        ("n", -1),
        ("n", 1.5),
        ("n", 10_000),
        ("n", True),
        ("max_tokens", 0),
        ("max_tokens", "4"),
        ("seed", 1.5),
        ("seed", 2**70),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", list("abcde")),
        ("stop_token_ids", [9_999_999]),
        ("stop_token_ids", [-5]),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", [1] * 10_000),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("user", 5),
        ("priority", 2**31),
        ("priority", 0.5),
        ("deadline_seconds", 0),
        ("cache_salt", ""),
        ("cache_salt", 5),
        ("cache_salt", "x" * 10_000),
        ("cache_salt", "a/b"),
        ("cache_salt", "a@b"),
        ("cache_salt", "a\\b"),
        ("cache_salt", "a\x00b"),
        ("cache", {"read": 1}),
        ("cache", {"sotre": False}),
        ("logit_bias", []),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": "1"}),
        ("logit_bias", {"5": 1000}),
        ("logit_bias", {"5": -100.5}),
        ("logit_bias", {"05": 1}),
        ("logit_bias", {"5": 1, "05": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"99999999": 1}),
        ("logit_bias", {"1" * 5000: 1}),
        ("logit_bias", {str(token): 1 for token in range(2000)}),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e-320),
        ("repetition_penalty", 10**9),
        ("min_p", 1.1),
        ("min_p", -0.1),
        ("min_tokens", -1),
        ("min_tokens", 5),
        ("logprobs", 21),
        ("logprobs", "yes"),
    ],
)
async def test_a_wrong_value_is_refused_by_name(gateway: Gateway, field: str, value: Any) -> None:
    """A field of the wrong type or out of range is a 400 that names it, on both endpoints."""
    for path, body in ((CHAT, CHAT_BODY), (TEXT, TEXT_BODY)):
        status, reply = await gateway.post(path, {**body, field: value})
        assert status == 400
        assert str(error_of(reply)["param"]).startswith(field)


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (CHAT, "functions", [{"name": "f"}]),
        (CHAT, "modalities", ["text", "audio"]),
        (CHAT, "audio", {}),
        (CHAT, "chat_template", "{{ 7 * 7 }}"),
        (CHAT, "continue_final_message", True),
        (CHAT, "add_generation_prompt", False),
        (TEXT, "suffix", "end"),
        (TEXT, "best_of", 2),
    ],
)
async def test_what_is_not_built_is_refused_by_name(
    gateway: Gateway, path: str, field: str, value: Any
) -> None:
    """A known field that would change the answer is never ignored in silence."""
    body = CHAT_BODY if path == CHAT else TEXT_BODY
    status, reply = await gateway.post(path, {**body, field: value})
    assert status == 400
    error = error_of(reply)
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    assert "not supported yet" in error["message"]


async def test_neutral_values_of_unbuilt_fields_are_taken(gateway: Gateway) -> None:
    """Values that change nothing are fine: clients send them all the time."""
    neutral = {
        "logprobs": False,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "auto",
        "modalities": ["text"],
        "top_logprobs": 0,
        "chat_template_kwargs": {},
        "continue_final_message": False,
        "add_generation_prompt": True,
    }
    assert (await gateway.post(CHAT, CHAT_BODY | neutral))[0] == 200


@pytest.mark.parametrize(
    ("model", "status"), [("no-such-model", 404), ("", 404), (None, 400), (5, 400), (..., 400)]
)
async def test_an_unknown_model_is_not_answered_by_another(
    gateway: Gateway, model: Any, status: int
) -> None:
    """A name that is not served is a 404; a missing one or no name at all is a 400."""
    for path, body in ((CHAT, CHAT_BODY), (TEXT, TEXT_BODY)):
        asked = {**body, "model": model}
        if model is ...:
            del asked["model"]
        found, reply = await gateway.post(path, asked)
        assert found == status
        error = error_of(reply)
        assert error["param"] == "model"
        assert (error["code"] == "model_not_found") == (status == 404)


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["one", 1], ["one", [1]], [1, [2]], ...])
async def test_a_prompt_of_nothing_is_refused(gateway: Gateway, prompt: Any) -> None:
    """An empty, missing or mixed prompt is a 400, and the next request works."""
    body = {**TEXT_BODY, "prompt": prompt}
    if prompt is ...:
        del body["prompt"]
    status, reply = await gateway.post(TEXT, body)
    assert status == 400
    assert str(error_of(reply)["param"]).startswith("prompt")
    assert (await gateway.post(TEXT, TEXT_BODY))[0] == 200


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "hi",
        [{"content": "hi"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "juggler", "content": "hi"}],
        [{"role": "user", "content": ""}],
    ],
)
async def test_messages_that_cannot_be_read_are_refused(gateway: Gateway, messages: Any) -> None:
    """Conversations without messages, roles or readable content are a 400."""
    status, reply = await gateway.post(CHAT, {**CHAT_BODY, "messages": messages})
    assert status == 400
    error_of(reply)


async def test_a_prompt_token_outside_the_vocabulary_is_refused(gateway: Gateway) -> None:
    """Token ids in a prompt are checked before the engine sees them."""
    for prompt in ([999_999], [[0], [999_999]], [-1], [2**32]):
        status, reply = await gateway.post(TEXT, {**TEXT_BODY, "prompt": prompt})
        assert status == 400
        assert str(error_of(reply)["param"]).startswith("prompt")


async def test_too_many_prompts_are_refused(gateway: Gateway) -> None:
    """The number of prompts in one request has a limit."""
    status, reply = await gateway.post(TEXT, {**TEXT_BODY, "prompt": ["one"] * 1000})
    assert (status, error_of(reply)["param"]) == (400, "prompt")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_over_the_context_is_refused(folder: Path, stream: bool) -> None:
    """A prompt that leaves no room is a JSON 400 before any event, streamed or not."""
    backend = echo_backend(folder, max_model_tokens=4)
    async with running_gateway(backend) as gateway:
        for path, field, value in (
            (CHAT, "messages", [{"role": "user", "content": "one two two two"}]),
            (TEXT, "prompt", "one two two two"),
        ):
            body = {"model": MODEL, field: value, "stream": stream}
            async with gateway.http.post(gateway.url + path, json=body) as reply:
                assert reply.status == 400
                assert reply.content_type == "application/json"
                error = error_of(await reply.json())
            assert (error["param"], error["code"]) == (field, "context_length_exceeded")
