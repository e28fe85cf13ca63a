"""From an Anthropic body to the conversation that a chat template reads, and its marks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.api.anthropic_models import Block, CacheControl, Message, PromptBody, Tool
from gateway.api.tool_use import JsonObject
from gateway.errors import InvalidRequestError
from prefixcache.text import Mark

_BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*(?:\n|\Z)")
_PASSED_OVER = ("thinking", "redacted_thinking")


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A place up to which the prompt is to be kept, and the field that says so."""

    param: str
    mark: Mark
    control: CacheControl


@dataclass(slots=True)
class Conversation:
    """What a template is given. Built message by message."""

    messages: list[JsonObject] = field(default_factory=list)
    tools: list[JsonObject] = field(default_factory=list)
    breakpoints: list[Breakpoint] = field(default_factory=list)  # tools, system, messages
    has_system: bool = False  # the first message is the system's
    goes_on: bool = False  # the last message is the assistant's and is to be continued

    @property
    def system(self) -> object:
        """The system's parts, or None."""
        return self.messages[0]["content"] if self.has_system else None

    @property
    def turns(self) -> list[JsonObject]:
        """All messages after the system's."""
        return self.messages[int(self.has_system) :]

    def open(self, role: str) -> list[JsonObject]:
        """Add a message of `role` and return its parts, which are still to come."""
        parts: list[JsonObject] = []
        self.messages.append({"role": role, "content": parts})
        return parts

    def keep(self, param: str, control: CacheControl | None, part_index: int | None) -> None:
        """Take note of a breakpoint right after what was added last."""
        if control is not None:
            mark = Mark(len(self.messages) - 1, part_index)
            self.breakpoints.append(Breakpoint(f"{param}.cache_control", mark, control))


def conversation(body: PromptBody, *, keep_billing_line: bool) -> Conversation:
    """Return `body` as templates know it; the prompt is the one that OpenAI's form would give.

    Raises:
        InvalidRequestError: a block or a tool cannot be read; the message names it.
    """
    made = Conversation()
    _add_tools(made, body.tools or ())
    _add_system(made, body.system or (), keep_billing_line=keep_billing_line)
    names: dict[str, str] = {}  # of the tools of earlier calls, by the call's id
    for index, message in enumerate(body.messages):
        _add_message(made, message, f"messages[{index}]", names)
    if body.messages[-1].role == "assistant":
        if "tool_calls" in made.messages[-1]:
            param = f"messages[{len(body.messages) - 1}]"
            raise InvalidRequestError(f"{param}: a tool_use needs its tool_result after it", param)
        made.goes_on = True
    return made


def _add_tools(made: Conversation, tools: Sequence[Tool]) -> None:
    for index, tool in enumerate(tools):
        param = f"tools[{index}]"
        if tool.type not in (None, "custom"):
            raise InvalidRequestError(
                f"{param}: tools of type {tool.type!r} are not served here; send tools with an"
                " input_schema",
                param,
            )
        if tool.input_schema is None:
            raise InvalidRequestError(f"{param}.input_schema: missing", f"{param}.input_schema")
        function: JsonObject = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        function["parameters"] = tool.input_schema
        made.tools.append({"type": "function", "function": function})
        if tool.cache_control is not None:  # a template shows all tools or none
            place = Breakpoint(f"{param}.cache_control", Mark(None), tool.cache_control)
            made.breakpoints.append(place)


def _add_system(
    made: Conversation, system: str | Sequence[Block], *, keep_billing_line: bool
) -> None:
    blocks = [Block(type="text", text=system)] if isinstance(system, str) else system
    texts = [_text(block, f"system[{index}]") for index, block in enumerate(blocks)]
    if not keep_billing_line:
        texts = [_BILLING_LINE.sub("", text) for text in texts]
    if not any(texts):
        return
    parts = made.open("system")
    made.has_system = True
    for index, (block, text) in enumerate(zip(blocks, texts, strict=True)):
        parts.append({"type": "text", "text": text})
        made.keep(f"system[{index}]", block.cache_control, index)


def _add_message(made: Conversation, message: Message, param: str, names: dict[str, str]) -> None:
    """Add a turn: the results of tools are messages of their own, calls belong to the turn."""
    content = message.content
    blocks = [Block(type="text", text=content)] if isinstance(content, str) else content
    parts: list[JsonObject] | None = None
    for index, block in enumerate(blocks):
        place = f"{param}.content[{index}]"
        if block.type == "tool_result" and message.role == "user":
            _add_result(made, block, place, names)
            parts = None  # a text that follows is a turn after it
            continue
        if block.type in _PASSED_OVER and message.role == "assistant":
            continue
        parts = made.open(message.role) if parts is None else parts
        if block.type == "tool_use" and message.role == "assistant":
            _add_call(made.messages[-1], block, place, names)
            made.keep(place, block.cache_control, None)
        else:
            parts.append({"type": "text", "text": _text(block, place)})
            made.keep(place, block.cache_control, len(parts) - 1)
    if parts is None and (not blocks or message.role != "user"):
        made.open(message.role)  # an empty turn is one, too


def _add_call(turn: JsonObject, block: Block, param: str, names: dict[str, str]) -> None:
    if block.id is None or block.name is None:
        raise InvalidRequestError(f"{param}: a tool_use needs id and name", param)
    names[block.id] = block.name
    function = {"name": block.name, "arguments": block.input or {}}
    calls = turn.setdefault("tool_calls", [])
    assert isinstance(calls, list)
    calls.append({"id": block.id, "type": "function", "function": function})


def _add_result(made: Conversation, block: Block, param: str, names: dict[str, str]) -> None:
    if block.tool_use_id is None:
        raise InvalidRequestError(f"{param}.tool_use_id: missing", f"{param}.tool_use_id")
    parts = made.open("tool")
    made.messages[-1]["tool_call_id"] = block.tool_use_id
    if block.tool_use_id in names:
        made.messages[-1]["name"] = names[block.tool_use_id]
    inner = block.content or []
    blocks = [Block(type="text", text=inner)] if isinstance(inner, str) else inner
    for index, each in enumerate(blocks):
        place = f"{param}.content[{index}]"
        parts.append({"type": "text", "text": _text(each, place)})
        made.keep(place, each.cache_control, index)
    made.keep(param, block.cache_control, None)


def _text(block: Block, param: str) -> str:
    if block.type != "text":
        raise InvalidRequestError(
            f"{param}: {block.type} blocks cannot be read here; send text", param
        )
    if block.text is None:
        raise InvalidRequestError(f"{param}.text: missing", f"{param}.text")
    return block.text
