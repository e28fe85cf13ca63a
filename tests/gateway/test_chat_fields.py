"""Chat fields that say nothing of sampling: what is given back, padded, read or refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.bodies import CHAT, CHAT_BODY, error_of
from tests.support.gateways import MODEL, Gateway

TEXT = "one two"


async def said(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    status, reply = await gateway.post(CHAT, CHAT_BODY | fields)
    assert status == 200, reply
    return reply


async def test_usage_has_all_details(gateway: Gateway) -> None:
    """The counts that clients sum up are there, as zeros where there is nothing of the kind."""
    usage: Any = (await said(gateway))["usage"]
    assert usage["prompt_tokens_details"] == {
        "cached_tokens": 0,
        "cache_write_tokens": 0,
        "audio_tokens": 0,
    }
    assert usage["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "audio_tokens": 0,
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
    }


async def test_the_service_tier_is_told_where_one_was_asked_for(gateway: Gateway) -> None:
    """Whatever tier is asked for, the answer is of the default one."""
    assert (await said(gateway, service_tier="flex"))["service_tier"] == "default"
    assert "service_tier" not in await said(gateway)


async def test_metadata_is_given_back(gateway: Gateway) -> None:
    """Up to 16 pairs come back as they were sent."""
    metadata = {"k" * 64: "v" * 512} | {str(n): "" for n in range(15)}
    assert (await said(gateway, metadata=metadata))["metadata"] == metadata
    assert "metadata" not in await said(gateway)


async def test_the_fingerprint_is_that_of_the_model_load(gateway: Gateway) -> None:
    """All answers of one load have one fingerprint, streamed or not."""
    found = {str((await said(gateway))["system_fingerprint"]) for _ in range(2)}
    async with gateway.http.post(gateway.url + CHAT, json=CHAT_BODY | {"stream": True}) as reply:
        lines = (await reply.text()).splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    found |= {chunk["system_fingerprint"] for chunk in chunks}
    assert len(found) == 1
    assert found.pop().startswith("fp_")


async def test_chunks_can_be_padded(gateway: Gateway) -> None:
    """With include_obfuscation the size of a chunk is a multiple of 64 bytes, whatever is in it."""
    options = {"include_obfuscation": True, "include_usage": True}
    body = CHAT_BODY | {"stream": True, "stream_options": options}
    async with gateway.http.post(gateway.url + CHAT, json=body) as reply:
        lines = (await reply.text()).splitlines()
    *chunks, usage, done = [line[6:] for line in lines if line]
    assert done == "[DONE]"
    assert {len(chunk) % 64 for chunk in chunks} == {0}
    assert all("obfuscation" in json.loads(chunk) for chunk in chunks)
    assert "obfuscation" not in json.loads(usage)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "refusal": TEXT},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": TEXT}]},
        {"role": "developer", "content": TEXT},
        {"role": "system", "content": TEXT, "name": "somebody"},
        {"role": "function", "name": "f", "content": TEXT},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": TEXT}]},
        {"role": "user", "content": TEXT, "unknown": [1]},
    ],
    ids=str,
)
async def test_every_kind_of_message_is_read(gateway: Gateway, message: dict[str, Any]) -> None:
    """Roles old and new, and refusals, come into the prompt as text."""
    reply: Any = await said(gateway, messages=[message])
    assert reply["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize("marked", [(6,), (0, 6), range(7)], ids=str)
async def test_anthropics_marks_on_parts_change_nothing(
    gateway: Gateway, marked: Sequence[int]
) -> None:
    """Clients of both dialects leave cache_control on a message's parts: the prompt has none."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": f"part {n} "} for n in range(7)]
    plain: Any = await said(gateway, messages=[{"role": "user", "content": parts}], max_tokens=99)
    for index in marked:
        parts[index] = parts[index] | {"cache_control": {"type": "ephemeral"}}
    reply: Any = await said(gateway, messages=[{"role": "user", "content": parts}], max_tokens=99)
    assert reply["choices"][0]["message"] == plain["choices"][0]["message"]
    assert reply["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


async def test_a_call_in_the_old_form_is_read(gateway: Gateway) -> None:
    """An assistant's function_call needs no content, as its tool_calls need none."""
    call = {"name": "f", "arguments": "{}"}
    messages = [{"role": "assistant", "function_call": call}, {"role": "user", "content": TEXT}]
    reply: Any = await said(gateway, messages=messages)
    assert reply["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
async def test_what_is_no_text_is_refused_by_kind(gateway: Gateway, kind: str) -> None:
    """A part that the model cannot read is a 400 that names the part and its type."""
    messages = [{"role": "user", "content": [{"type": kind, kind: {}}]}]
    status, reply = await gateway.post(CHAT, CHAT_BODY | {"messages": messages})
    error = error_of(reply)
    assert (status, error["param"]) == (400, "messages[0].content[0]")
    assert kind in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metadata", {str(n): "" for n in range(17)}),
        ("metadata", {"k" * 65: ""}),
        ("metadata", {"k": "v" * 513}),
        ("metadata", {"k": 1}),
        ("safety_identifier", "x" * 129),
        ("service_tier", 1),
        ("verbosity", "loud"),
        ("moderation", {"model": "m"}),
        ("stream_options", {"include_obfuscation": True}),
    ],
)
async def test_a_wrong_value_is_refused_by_name(gateway: Gateway, field: str, value: Any) -> None:
    """Over a limit, of the wrong type, or not built: a 400 that names the field."""
    status, reply = await gateway.post(CHAT, CHAT_BODY | {field: value})
    assert status == 400
    assert str(error_of(reply)["param"]).startswith(field)


async def test_fields_without_effect_are_taken(gateway: Gateway) -> None:
    """What only steers machines that are not here changes nothing."""
    plain = await said(gateway)
    fields = {
        "store": True,
        "user": "u",
        "safety_identifier": "x" * 128,
        "prompt_cache_key": "k",
        "prompt_cache_retention": "in_memory",
        "reasoning_effort": "high",
        "verbosity": "low",
    }
    found = await said(gateway, **fields)
    assert found["choices"] == plain["choices"]
    assert found["model"] == MODEL
