"""The items of a response's input as the messages that chat templates know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from gateway.api.openai_cache import Lifetime
from gateway.api.openai_messages import Place, call_as_template_sees
from gateway.api.responses_models import InputItem, InputPart
from gateway.errors import InvalidRequestError

_TEXT_TYPES = ("input_text", "output_text", "text")
_ROLES = ("user", "assistant", "system", "developer")

TemplateMessage = dict[str, object]


def items_of(given: str | Sequence[InputItem] | None) -> tuple[InputItem, ...]:
    """Return a body's input as items: a text is one message of the user.

    Raises:
        InvalidRequestError: an item is of a type that cannot be read, or lacks what its type
            needs.
    """
    if given is None:
        return ()
    if isinstance(given, str):
        return (InputItem(type="message", role="user", content=given),)
    for index, item in enumerate(given):
        _check(item, f"input[{index}]")
    return tuple(given)


def named(items: Iterable[InputItem], new_id: Callable[[], str]) -> Iterator[InputItem]:
    """Yield `items` with all that a listing shows: type, id and status, contents as parts."""
    for item in items:
        kind, content = item.type or "message", item.content
        if isinstance(content, str):
            part_type = "output_text" if item.role == "assistant" else "input_text"
            content = [InputPart(type=part_type, text=content)]
        yield replace(
            item,
            type=kind,
            id=item.id or f"{_PREFIXES[kind]}_{new_id()}",
            status=item.status or "completed",
            content=content,
        )


@dataclass(slots=True)
class Conversation:
    """Items as messages, and which parts of these have a cache breakpoint, in order."""

    messages: list[TemplateMessage] = field(default_factory=list)
    breakpoints: dict[Place, Lifetime | None] = field(default_factory=dict)

    def add(self, message: TemplateMessage, content: str | Sequence[InputPart] | None) -> None:
        """Append `message` with `content`, a text or parts of one."""
        message["content"] = _parts(content)
        for index, part in enumerate(content or ()):
            if isinstance(part, InputPart) and part.prompt_cache_breakpoint is not None:
                place = (len(self.messages), index)
                self.breakpoints[place] = part.prompt_cache_breakpoint.ttl
        self.messages.append(message)


def conversation(instructions: str | None, items: Sequence[InputItem]) -> Conversation:
    """Return checked items as a conversation.

    Instructions are a system message before all others. A call belongs to the assistant's
    message before it, as the model wrote it; a call's output is a message of the role `tool`, with
    its function's name. Reasoning is left out.
    """
    found = Conversation()
    if instructions is not None:
        found.add({"role": "system"}, instructions)
    names = {item.call_id: item.name for item in items if item.type == "function_call"}
    for item in items:
        match item.type:
            case "function_call":
                _add_call(found.messages, item)
            case "function_call_output":
                found.add(_output(item, names), item.output)
            case "reasoning":
                pass
            case _:
                found.add({"role": item.role}, item.content)
    return found


def _check(item: InputItem, param: str) -> None:
    kind = item.type or "message"
    if kind not in _NEEDED:
        _refuse(f"{param}.type", f"items of type {kind[:40]!r} cannot be read")
    for name in _NEEDED[kind]:
        if getattr(item, name) is None:
            _refuse(f"{param}.{name}", f"a {kind} needs it")
    if kind == "message" and item.role not in _ROLES:
        _refuse(f"{param}.role", f"{item.role!r} is none of {', '.join(_ROLES)}")
    for name in {"content", "output"}.intersection(_NEEDED[kind]):
        _check_parts(getattr(item, name), f"{param}.{name}")


def _check_parts(parts: str | Sequence[InputPart], param: str) -> None:
    if isinstance(parts, str):
        return
    for index, part in enumerate(parts):
        at = f"{param}[{index}]"
        if part.type == "refusal" and part.refusal is not None:
            continue
        if part.type not in _TEXT_TYPES:
            _refuse(at, f"parts of type {part.type[:40]!r} cannot be read; send text")
        if part.text is None:
            _refuse(f"{at}.text", "a part that is text needs it")


def _refuse(param: str, reason: str) -> None:
    raise InvalidRequestError(f"{param}: {reason}", param)


def _parts(content: str | Sequence[InputPart] | None) -> str | list[dict[str, str]]:
    if content is None or isinstance(content, str):
        return content or ""
    return [{"type": "text", "text": part.text or part.refusal or ""} for part in content]


def _add_call(messages: list[TemplateMessage], item: InputItem) -> None:
    function = {"name": item.name, "arguments": item.arguments}
    call = call_as_template_sees({"id": item.call_id, "type": "function", "function": function})
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant":
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        return
    calls = last.setdefault("tool_calls", [])
    assert isinstance(calls, list)  # made by the line above or below
    calls.append(call)


def _output(item: InputItem, names: Mapping[str | None, str | None]) -> TemplateMessage:
    message: TemplateMessage = {"role": "tool", "tool_call_id": item.call_id}
    name = item.name or names.get(item.call_id)
    return message if name is None else message | {"name": name}


_NEEDED: Mapping[str, tuple[str, ...]] = {  # what an item of each type needs
    "message": ("content",),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
}
_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
}
