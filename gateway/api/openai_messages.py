"""A chat body's messages as the plain mappings that chat templates know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gateway.api.bodies import convert_part
from gateway.api.openai_cache import Lifetime
from gateway.api.openai_models import Message
from gateway.api.openai_tools import EarlierCall
from gateway.api.tool_use import JsonObject
from gateway.errors import InvalidRequestError

Place = tuple[int, int]  # a message, and a part of it


def as_templates_see(messages: Sequence[Message]) -> list[Mapping[str, object]]:
    """Return `messages` for a template.

    A tool's result has the name of its function, which OpenAI's clients leave out and some
    templates need. A refusal is read as text. A call of a function in the old form is one of
    a tool.

    Raises:
        InvalidRequestError: one has no content, or a part that is not text.
    """
    names = _names_of_calls(messages)
    return [_as_template_sees(each, index, names) for index, each in enumerate(messages)]


def breakpoints_in(messages: Sequence[Message]) -> dict[Place, Lifetime | None]:
    """Return which parts have a cache breakpoint, and its lifetime, in prompt order."""
    return {
        (index, part_index): part.prompt_cache_breakpoint.ttl
        for index, message in enumerate(messages)
        if isinstance(message.content, list)
        for part_index, part in enumerate(message.content)
        if part.prompt_cache_breakpoint is not None
    }


def call_as_template_sees(call: JsonObject) -> JsonObject:
    """Return an earlier call with its arguments, which come as JSON text, as an object.

    Templates write them as JSON themselves. What is no object in JSON stays a text.
    """
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"], type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _names_of_calls(messages: Sequence[Message]) -> dict[str, str]:
    """Return which function each earlier call was of, by the call's id.

    Raises:
        InvalidRequestError: a call is malformed.
    """
    calls = [
        convert_part(call, EarlierCall, f"messages[{index}].tool_calls[{call_index}]")
        for index, message in enumerate(messages)
        for call_index, call in enumerate(message.tool_calls or ())
    ]
    return {call.id: call.function.name for call in calls if call.id is not None}


def _as_template_sees(
    message: Message, index: int, names: Mapping[str, str]
) -> Mapping[str, object]:
    fields: dict[str, object] = {"role": message.role, "content": _content(message, index)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            fields[name] = value
    if message.role == "tool" and (called := names.get(message.tool_call_id or "")):
        fields.setdefault("name", called)
    if calls := _calls(message):  # templates take an empty list for calls
        fields["tool_calls"] = [call_as_template_sees(call) for call in calls]
    return fields


def _calls(message: Message) -> Sequence[JsonObject]:
    if message.function_call is None:
        return message.tool_calls or ()
    return [*(message.tool_calls or ()), {"type": "function", "function": message.function_call}]


def _content(message: Message, index: int) -> str | list[dict[str, str]]:
    if isinstance(message.content, str):
        return message.content
    param = f"messages[{index}].content"
    if message.content is None:
        if message.refusal is not None or _calls(message):
            return message.refusal or ""  # a turn may do nothing but call tools
        raise InvalidRequestError(f"{param}: a text or a list of text parts is needed", param)
    parts = []
    for part_index, part in enumerate(message.content):
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in ("text", "refusal") or text is None:
            param = f"{param}[{part_index}]"
            raise InvalidRequestError(
                f"{param}: only text parts can be read, not {part.type[:40]!r}", param
            )
        parts.append({"type": "text", "text": text})
    return parts
