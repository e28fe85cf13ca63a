"""Bodies that are malformed or mistyped: which field the refusal names."""

from __future__ import annotations

import json
from contextlib import suppress
from threading import Lock
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.bodies import decode_body
from gateway.api.openai_models import CHAT_DECODER
from gateway.errors import InvalidRequestError
from tests.support.bodies import CHAT, CHAT_BODY, TEXT, TEXT_BODY, error_of
from tests.support.gateways import Gateway

MARK = '"MARK"'
USER = {"role": "user", "content": "one"}
DEEP_LIST, DEEP_OBJECT = "[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": "MARK"}}
CALLS = "messages[1].tool_calls"
HALF_PAIR = '"\\ud800"'


def calls(*found: object) -> list[object]:
    return [USER, {"role": "assistant", "tool_calls": list(found)}]


def tool(**function: object) -> dict[str, object]:
    return {"type": "function", "function": function}


# A field of the body, its value, what stands in it in place of MARK, and what is named.
NAMED: list[tuple[str, object, str, str]] = [
    ("temperature", "MARK", "NaN", "temperature"),
    ("temperature", "MARK", "-Infinity", "temperature"),
    ("temperature", "MARK", "1e999", "temperature"),
    ("temperature", "MARK", "1" * 400, "temperature"),
    ("seed", "MARK", "9" * 5000, "seed"),
    ("logit_bias", {"5": "MARK"}, "NaN", "logit_bias.5"),
    ("logit_bias", {"5": "MARK"}, '"x"', "logit_bias"),
    ("stop", ["a", "MARK"], "5", "stop[1]"),
    ("stop", ["a", "MARK"], HALF_PAIR, "stop[1]"),
    ("user", "MARK", HALF_PAIR, "user"),
    ("user", "MARK", '"\x01"', "user"),
    ("user", "MARK", '"\\x"', "user"),
    ("user", "MARK", "undefined", "user"),
    ("user", "MARK", "'a'", "user"),
    ("user", "MARK", "01", "user"),
    ("user", "MARK", '"a', "user"),
    ("anything", "MARK", DEEP_LIST, "anything[0][0]"),
    ("anything", {"x": [1, "MARK"]}, "NaN", "anything.x[1]"),
    ("cache", {"MARK": True}, '"sotre"', "cache.sotre"),
    ("guided_choice", ["a", "MARK"], "5", "guided_choice[1]"),
]
IN_CHATS: list[tuple[str, object, str, str]] = [
    ("messages", [USER, "MARK"], "null", "messages[1]"),
    ("messages", [USER, {"content": "MARK"}], '"one"', "messages[1].role"),
    ("messages", [USER, {"role": "MARK", "content": "one"}], '"juggler"', "messages[1].role"),
    ("messages", [USER, {**USER, "content": "MARK"}], "5", "messages[1].content"),
    ("messages", [USER, {**USER, "content": "MARK"}], "null", "messages[1].content"),
    ("messages", [USER, {**USER, "content": "MARK"}], HALF_PAIR, "messages[1].content"),
    ("messages", [{**USER, "content": ["MARK"]}], "5", "messages[0].content[0]"),
    ("messages", [{**USER, "content": ["MARK"]}], "{}", "messages[0].content[0].type"),
    ("messages", [{**USER, "content": [{"type": "MARK"}]}], "5", "messages[0].content[0].type"),
    ("messages", [{**USER, "content": [{"type": "MARK"}]}], '"hat"', "messages[0].content[0]"),
    ("messages", calls("MARK"), "5", "messages[1].tool_calls[0]"),
    ("messages", calls("MARK"), "{}", "messages[1].tool_calls[0].function"),
    ("messages", calls(tool(name="f"), {"function": "MARK"}), "5", f"{CALLS}[1].function"),
    ("messages", calls(tool(name="MARK")), "[1]", "messages[1].tool_calls[0].function.name"),
    ("messages", calls(tool(name="MARK")), '""', "messages[1].tool_calls[0].function.name"),
    ("messages", calls(tool(name="f", arguments="MARK")), "5", f"{CALLS}[0].function.arguments"),
    ("messages", calls(tool(name="f") | {"id": "MARK"}), "[1]", "messages[1].tool_calls[0].id"),
    ("messages", calls(tool(name="f", arguments="MARK")), DEEP_OBJECT, "messages[1].tool_calls"),
    ("tools", [tool(name="f"), tool(name="MARK")], "5", "tools[1].function.name"),
    ("tools", [tool(name="f"), tool(parameters="MARK")], "{}", "tools[1].function.name"),
    ("tools", [{"type": "MARK"}], '"hat"', "tools[0].type"),
    ("tools", [tool(name="f", parameters="MARK")], DEEP_OBJECT, "tools[0].function"),
    ("tools", [tool(name="f", parameters="MARK")], '{"a":' * 600 + "1" + "}" * 600, "tools"),
    ("tools", [tool(name="f", parameters="MARK")], f"[{DEEP_LIST}", "tools[0].function"),
    ("tool_choice", {"type": "MARK"}, '"hat"', "tool_choice.type"),
    ("response_format", {"type": "MARK"}, '"hat"', "response_format.type"),
    ("response_format", SCHEMA, "5", "response_format.json_schema.schema"),
    ("response_format", SCHEMA, DEEP_OBJECT, "response_format.json_schema.schema"),
    ("response_format", SCHEMA, '{"x": NaN}', "response_format.json_schema.schema.x"),
]  # fmt: skip
IN_TEXTS: list[tuple[str, object, str, str]] = [
    ("prompt", ["one", "MARK"], HALF_PAIR, "prompt[1]"),
    ("prompt", "MARK", HALF_PAIR, "prompt"),
    ("prompt", [1, "MARK"], "NaN", "prompt[1]"),
    ("prompt", [1, "MARK"], "1.5", "prompt[1]"),
    ("prompt", [[1, "MARK"]], '"x"', "prompt[0][1]"),
    ("prompt", "MARK", DEEP_LIST, "prompt[0][0]"),
    ("prompt", "MARK", "[1, 2", "prompt[2]"),
]
CASES = [
    *((CHAT, CHAT_BODY, *case) for case in (*NAMED, *IN_CHATS)),
    *((TEXT, TEXT_BODY, *case) for case in (*NAMED, *IN_TEXTS)),
]


@pytest.mark.parametrize(
    ("path", "body", "field", "value", "written", "param"), CASES, ids=range(len(CASES))
)
async def test_the_field_at_fault_is_named(
    gateway: Gateway,
    path: str,
    body: dict[str, Any],
    field: str,
    value: object,
    written: str,
    param: str,
) -> None:
    """A value that is no JSON, of the wrong type or nested without end is told with its place."""
    text = json.dumps(body | {field: value}).replace(MARK, written)
    status, error = await posted(gateway, path, text.encode())
    assert (status, error["param"]) == (400, param)
    assert error["message"].startswith(param) or param in error["message"]


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'"x"', b"5", b'{"model":', b"\xff", b"\xef\xbb\xbf{}"],
)
async def test_a_body_that_is_no_object_has_no_field(gateway: Gateway, body: bytes) -> None:
    """Where the body as a whole is at fault, no field is blamed."""
    for path in (CHAT, TEXT):
        status, error = await posted(gateway, path, body)
        assert status == 400
        assert error["param"] is None


async def test_what_follows_a_body_has_no_field(gateway: Gateway) -> None:
    """One object and nothing more is a body."""
    for more in (b"x", b"{}", b"NaN"):
        status, error = await posted(gateway, CHAT, VALID + more)
        assert (status, error["param"]) == (400, None)


async def test_a_text_that_is_no_utf8_is_named(gateway: Gateway) -> None:
    """Bytes that spell no characters are the fault of the field that holds them."""
    text = json.dumps(CHAT_BODY | {"messages": [USER, {**USER, "content": "X"}]}).encode()
    status, error = await posted(gateway, CHAT, text.replace(b"X", b"\xc3("))
    assert (status, error["param"]) == (400, "messages[1].content")


VALID = json.dumps(
    CHAT_BODY | {"messages": calls(tool(name="f", arguments="{}")), "stop": ["é", "\\"]}
).encode()


@given(
    place=st.integers(0, len(VALID)),
    length=st.integers(0, 6),
    written=st.binary(max_size=3) | st.sampled_from([b"[" * 2000, b'{"a":' * 2000, b"\\ud800"]),
)
def test_any_damage_is_a_refusal(place: int, length: int, written: bytes) -> None:
    """Whatever bytes a body is damaged with, it is read or refused, and never another error."""
    body = VALID[:place] + written + VALID[place + length :]
    with suppress(InvalidRequestError):
        assert decode_body(CHAT_DECODER, body, turn=Lock()).model


def test_a_fault_far_into_a_body_is_refused_without_its_field() -> None:
    """What is read a second time, for the name, has a bound."""
    body = b'{"model":"tiny","stop":[' + b'"a",' * 2**19 + b'NaN],"messages":[]}'
    with pytest.raises(InvalidRequestError, match="not valid JSON") as caught:
        decode_body(CHAT_DECODER, body, turn=Lock())
    assert caught.value.param is None


async def posted(gateway: Gateway, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    async with gateway.http.post(gateway.url + path, data=body) as reply:
        return reply.status, error_of(await reply.json())
