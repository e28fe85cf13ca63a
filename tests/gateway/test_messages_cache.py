"""/v1/messages: what is read from the cache, what is written to it, and what usage says of both."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.echo import EchoBackend
from prefixcache.types import FinishReason
from tests.support.anthropics import (
    BODY,
    COUNT,
    EPHEMERAL,
    HOUR,
    MESSAGES,
    anthropic_client,
    events,
    use_template,
)
from tests.support.bodies import CHAT
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import write_chat_tokenizer

BILLING = "x-anthropic-billing-header: cc_version=9.9.9; cch={};"
LONG = "hello world alpha " * 12
TOOL = {"name": "t", "description": "d", "input_schema": {"type": "object"}}
ZERO = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}


@pytest.fixture
async def chat(tmp_path: Path) -> AsyncIterator[Gateway]:
    write_chat_tokenizer(tmp_path)
    use_template(tmp_path)
    async with running_gateway(EchoBackend(tmp_path)) as running:
        yield running


def text(value: str, control: dict[str, str] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": value} | ({} if control is None else {"cache_control": control})


def user(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


async def usage_of(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    """Return the usage of a message, which is the same when it is streamed."""
    status, reply = await gateway.post(MESSAGES, BODY | fields)
    assert status == 200, reply
    usage: Any = reply["usage"]
    return dict(usage)


def total(usage: dict[str, Any]) -> int:
    return sum(usage[f"{kind}input_tokens"] for kind in ("", "cache_read_", "cache_creation_"))


async def test_the_parts_of_the_input_add_up_to_openais_count(chat: Gateway) -> None:
    """Read, written and neither are the prompt; what was read is what OpenAI's form says."""
    fields = {"system": LONG}
    cold = await usage_of(chat, **fields)
    assert (cold["cache_read_input_tokens"], cold["cache_creation"]) == (0, ZERO)
    warm = await usage_of(chat, **fields)
    turns = [{"role": "system", "content": LONG}, *BODY["messages"]]
    _, reply = await chat.post(CHAT, {"model": MODEL, "messages": turns, "max_tokens": 4})
    openai: Any = reply["usage"]
    assert total(cold) == total(warm) == openai["prompt_tokens"]
    assert warm["cache_read_input_tokens"] == openai["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("marked", [False, True])
async def test_streams_say_what_whole_answers_say(chat: Gateway, marked: bool) -> None:
    """The same numbers stand in the whole message, at the stream's start and at its end."""
    system = [text(LONG, EPHEMERAL if marked else None)]
    for is_warm in (False, True):
        body = BODY | {"system": system, "cache_salt": f"s{is_warm}"}
        if is_warm:
            await chat.post(MESSAGES, body)
        found = await events(chat, body)
        start, end = found[0][1]["message"]["usage"], found[-2][1]["usage"]
        assert {**start, "output_tokens": 4} == end
        assert (end["cache_read_input_tokens"] > 0) is is_warm
        assert (end["cache_creation_input_tokens"] > 0) is (marked and not is_warm)
        again = await usage_of(chat, **body)
        if is_warm:
            assert again == end


async def test_a_read_takes_the_place_of_a_write(chat: Gateway) -> None:
    """What is marked is written once, and read from then on."""
    fields = {"system": [text(LONG, HOUR)]}
    cold, warm = await usage_of(chat, **fields), await usage_of(chat, **fields)
    n_written = cold["cache_creation_input_tokens"]
    assert cold["cache_creation"] == ZERO | {"ephemeral_1h_input_tokens": n_written}
    assert n_written > 16
    assert warm["cache_creation"] == ZERO
    assert warm["cache_read_input_tokens"] >= n_written


async def test_writes_are_split_by_how_long_they_stay(chat: Gateway) -> None:
    """The hour's part comes first; what a shorter mark adds to it is the five minutes' own."""
    usage = await usage_of(
        chat, system=[text(LONG, HOUR)], messages=user(text(LONG, EPHEMERAL), text("one"))
    )
    split = usage["cache_creation"]
    assert split["ephemeral_1h_input_tokens"] > 0
    assert split["ephemeral_5m_input_tokens"] > 0
    assert sum(split.values()) == usage["cache_creation_input_tokens"]


async def test_little_is_not_written(chat: Gateway) -> None:
    """Less than a block of KV cannot be kept, and nothing is said of it."""
    usage = await usage_of(chat, system=[text("one", EPHEMERAL)])
    assert usage["cache_creation"] == ZERO


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"tools": [TOOL | {"cache_control": EPHEMERAL}], "system": [text("s", HOUR)]}, 400),
        ({"system": [text("s", HOUR)], "messages": user(text("m", EPHEMERAL))}, 200),
        ({"system": [text("s", {"type": "ephemeral", "ttl": "2h"})]}, 400),
        ({"system": [{"type": "text", "text": "s",
                      "cache_control": {"type": "ephemeral", "ttl": None}}]}, 200),
        ({"system": [text("s", {"type": "forever"})]}, 400),
        ({"messages": user(*[text("a", EPHEMERAL)] * 4)}, 200),
        ({"messages": user(*[text("a", EPHEMERAL)] * 5)}, 400),
        ({"messages": user(*[text("a", EPHEMERAL)] * 4), "cache_control": EPHEMERAL}, 200),
        ({"messages": user(*[text("a", EPHEMERAL)] * 4, text("b")),
          "cache_control": EPHEMERAL}, 400),
        ({"messages": user(text("a", EPHEMERAL)), "cache_control": HOUR}, 400),
        ({"system": [text("s", EPHEMERAL)], "cache_control": HOUR}, 400),
    ],
)  # fmt: skip
async def test_breakpoints_follow_the_vendors_rules(
    chat: Gateway, fields: dict[str, Any], status: int
) -> None:
    """At most four; a longer time before a shorter one, in the order tools, system, messages."""
    found, reply = await chat.post(MESSAGES, BODY | fields)
    assert found == status, reply


async def test_automatic_caching_marks_the_end(chat: Gateway) -> None:
    """cache_control at the top keeps all of the conversation but its last tokens."""
    usage = await usage_of(chat, system=LONG, cache_control=EPHEMERAL)
    assert total(usage) - usage["cache_creation_input_tokens"] < 32


async def test_marks_do_not_change_the_prompt(chat: Gateway) -> None:
    """Whatever carries cache_control, the prompt is the one without it."""
    plain = user(*[text(f"part {n} ") for n in range(7)])
    marked = user(*[text(f"part {n} ", EPHEMERAL if n == 6 else None) for n in range(7)])
    replies = [await chat.post(MESSAGES, BODY | {"messages": m, "max_tokens": 500})
               for m in (plain, marked)]  # fmt: skip
    contents = [reply["content"] for _, reply in replies]
    assert contents[0] == contents[1]


async def test_count_tokens_counts_what_a_message_uses(chat: Gateway) -> None:
    """The count is that of the real call, needs no max_tokens and stores nothing."""
    prompts: list[dict[str, Any]] = [
        {},
        {"system": "hello"},
        {"system": [text("hello ", HOUR), text("world")]},
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
        {"messages": user(text("\u00e9\U0001f642"), text(""))},
        {"messages": user(text("<|im_end|>"))},
        {"messages": [*user(text("a")), {"role": "assistant", "content": "b"}]},
        {"system": "", "messages": user(text(""))},
        {"system": BILLING.format("1") + "\nhello"},
        {"thinking": {"type": "adaptive"}, "cache_control": EPHEMERAL},
    ]
    for number, fields in enumerate(prompts):
        body = {name: value for name, value in (BODY | fields).items() if name != "max_tokens"}
        status, counted = await chat.post(COUNT, body)
        assert status == 200, counted
        usage = await usage_of(chat, cache_salt=f"s{number}", **fields)
        assert counted == {"input_tokens": total(usage)}
        assert usage["cache_read_input_tokens"] == 0  # counting has stored nothing


async def test_the_official_client_counts(gateway: Gateway) -> None:
    """count_tokens of the official client."""
    async with anthropic_client(gateway) as client:
        counted = await client.messages.count_tokens(model=MODEL, messages=BODY["messages"])
    assert counted.input_tokens == 2


def billed(nonce: str) -> list[dict[str, Any]]:
    return [text(BILLING.format(nonce)), text(LONG)]


async def test_the_billing_line_is_left_out(chat: Gateway) -> None:
    """Bodies that differ in its nonce alone share their whole prompt."""
    await usage_of(chat, system=billed("00a1f"))
    usage = await usage_of(chat, system=billed("77b2c"))
    assert usage["cache_read_input_tokens"] == total(usage) - 1


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"system": f"{BILLING}\nhello"}, "system\nhello\nuser\none two"),
        ({"system": [text(BILLING), text("hello")]}, "system\nhello\nuser\none two"),
        ({"system": BILLING}, "user\none two"),
        ({"system": f" {BILLING}"}, f"system\n {BILLING}"),
        ({"system": f"hello\n{BILLING}"}, f"system\nhello\n{BILLING}"),
        ({"messages": user(text(BILLING))}, f"user\n{BILLING}"),
    ],
)
async def test_only_that_line_at_that_place_is_left_out(
    chat: Gateway, fields: dict[str, Any], shown: str
) -> None:
    """Anywhere else, and in what users write, it is text like any other."""
    _, reply = await chat.post(MESSAGES, BODY | {"max_tokens": 900} | fields)
    content: Any = reply["content"]
    assert content[0]["text"].startswith(shown)


async def test_a_setting_keeps_the_billing_line(tmp_path: Path) -> None:
    """With keep_billing_line the model is shown it."""
    write_chat_tokenizer(tmp_path)
    async with running_gateway(EchoBackend(tmp_path), keep_billing_line=True) as gateway:
        _, reply = await gateway.post(
            MESSAGES, BODY | {"max_tokens": 900, "system": f"{BILLING}\nhello"}
        )
    content: Any = reply["content"]
    assert content[0]["text"].startswith(f"system\n{BILLING}\nhello")


async def diagnosed(gateway: Gateway, **fields: Any) -> Any:
    status, reply = await gateway.post(MESSAGES, BODY | fields)
    assert status == 200, reply
    return reply


async def test_a_miss_is_explained(chat: Gateway) -> None:
    """The first of model, system, tools and messages that differs is named."""
    base: dict[str, Any] = {"system": LONG, "tools": [TOOL]}
    first = await diagnosed(chat, **base)
    assert "diagnostics" not in first
    asked = {"diagnostics": {"previous_message_id": first["id"]}}
    for changed, reason in (
        ({}, None),
        ({"messages": [*BODY["messages"], {"role": "assistant", "content": "x"},
                       *user(text("y"))]}, None),
        ({"system": [text(LONG, EPHEMERAL)]}, None),
        ({"system": "other"}, "system_changed"),
        ({"tools": []}, "tools_changed"),
        ({"tools": [], "system": "other"}, "system_changed"),
        ({"messages": user(text("one three"))}, "messages_changed"),
        ({"tool_choice": {"type": "none"}}, "unavailable"),
    ):  # fmt: skip
        reply = await diagnosed(chat, **(base | asked | changed))
        found = reply["diagnostics"]
        if reason is None:
            assert found is None, changed
            continue
        miss = found["cache_miss_reason"]
        assert miss["type"] == reason
        assert ("cache_missed_input_tokens" in miss) is reason.endswith("_changed")


async def test_an_unknown_answer_cannot_be_compared_with(chat: Gateway) -> None:
    """Null asks for nothing yet; an id that is not known is said to be so, in a stream as well."""
    reply = await diagnosed(chat, diagnostics={"previous_message_id": None})
    assert reply["diagnostics"] is None
    body = BODY | {"diagnostics": {"previous_message_id": "msg_x"}}
    found = await events(chat, body)
    miss = found[0][1]["message"]["diagnostics"]["cache_miss_reason"]
    assert miss == {"type": "previous_message_not_found"}


@pytest.mark.skipif("PREFIXCACHE_CASES" not in os.environ, reason="needs the handed cases")
async def test_the_vendors_order_on_the_handed_bodies(chat: Gateway) -> None:
    """A mark for an hour after one for five minutes is refused, as the vendor does."""
    bodies = json.loads(
        (Path(os.environ["PREFIXCACHE_CASES"]) / "inputs/A03.json").read_text(encoding="utf-8")
    )
    found = [(await chat.post(MESSAGES, body))[0] for body in bodies]
    assert found == [400, 200, 400, 200]


@pytest.mark.parametrize("n_written", [0, 16, 48, 64, 5000])
async def test_no_more_is_claimed_than_was_written(tmp_path: Path, n_written: int) -> None:
    """Creation is what was asked to be kept and is there, the longer time's first."""
    write_chat_tokenizer(tmp_path)
    backend = ScriptedBackend(tmp_path, [["a", FinishReason.STOP]] * 2)
    backend.max_model_tokens, backend.written_tokens = 2000, n_written
    body = BODY | {"system": [text(LONG, HOUR)], "messages": user(text(LONG, EPHEMERAL))}
    async with running_gateway(backend) as gateway:
        usage = await usage_of(gateway, **body)
        found = await events(gateway, body)
    assert found[-2][1]["usage"] == usage
    n_long, n_short = sorted(kept.n_tokens for kept in backend.requests[0].retain)
    created = usage["cache_creation"]
    assert created["ephemeral_1h_input_tokens"] == min(n_long, n_written)
    assert usage["cache_creation_input_tokens"] == sum(created.values()) == min(n_short, n_written)
    assert total(usage) == total(found[0][1]["message"]["usage"])
