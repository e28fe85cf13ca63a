"""An answer's text as OpenAI's deltas and messages: content and tool calls."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gateway.api.choice_text import CallStart, Told
from prefixcache.text.tools import CallArguments, Content


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a call: its name comes first and once, its arguments in any number of pieces."""

    arguments: str
    name: str | None = None


class CallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of the call `index`."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: str | None = None


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of the model's turn."""

    role: str | None = None
    content: str | None = None
    tool_calls: list[CallDelta] | None = None


class FunctionReply(msgspec.Struct, frozen=True):
    """The function of a whole call; its arguments are JSON, if nothing cut them short."""

    name: str
    arguments: str


class CallReply(msgspec.Struct, frozen=True):
    """A whole call."""

    id: str
    function: FunctionReply
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True):
    """The model's turn."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: list[CallReply] | msgspec.UnsetType = msgspec.UNSET


def delta_of(told: Told) -> ChatDelta:
    """Return a piece of an answer as OpenAI's delta."""
    match told:
        case Content(text=text):
            return ChatDelta(content=text)
        case CallStart():
            return _call(CallDelta(told.index, FunctionDelta("", told.name), told.id, "function"))
        case CallArguments():
            return _call(CallDelta(told.index, FunctionDelta(told.text)))


def message_of(told: Iterable[Told]) -> ChatMessage:
    """Return the whole turn that `told` are the pieces of."""
    contents: list[str] = []
    calls: list[CallReply] = []
    for delta in map(delta_of, told):
        contents.append(delta.content or "")
        for call in delta.tool_calls or ():
            if call.id is not None:
                calls.append(CallReply(call.id, FunctionReply(call.function.name or "", "")))
            else:
                calls[call.index] = _longer(calls[call.index], call.function.arguments)
    content = "".join(contents)
    if not calls:
        return ChatMessage(content)
    return ChatMessage(content or None, tool_calls=calls)


def _longer(call: CallReply, arguments: str) -> CallReply:
    function = FunctionReply(call.function.name, call.function.arguments + arguments)
    return CallReply(call.id, function)


def _call(delta: CallDelta) -> ChatDelta:
    return ChatDelta(tool_calls=[delta])
