"""From the contents and tools of the Gemini dialect to what a chat template reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from gateway.api.bodies import convert_body
from gateway.api.gemini_models import (
    Content,
    FunctionDeclaration,
    Part,
    PromptFields,
    ToolConfig,
)
from gateway.api.gemini_schema import json_schema
from gateway.api.tool_use import Function, JsonObject, ToolFields
from gateway.api.wishes import Bound
from gateway.errors import InvalidRequestError

_ROLES = {None: "user", "": "user", "user": "user", "model": "assistant", "function": "user"}
_MODES: Mapping[str, Literal["none", "auto", "required"]] = {
    "NONE": "none",
    "ANY": "required",
}
_UNREAD = ("inline_data", "file_data", "executable_code", "code_execution_result")
_CONFIG = "toolConfig.functionCallingConfig"


def messages_of(fields: PromptFields) -> list[JsonObject]:
    """Return the system's message, if there is one, and all turns.

    Raises:
        InvalidRequestError: a part cannot be read; the message names it.
    """
    messages = [] if fields.system_instruction is None else _system(fields.system_instruction)
    for index, content in enumerate(fields.contents or ()):
        _add(messages, content, f"contents[{index}]")
    return messages


def declarations_of(fields: PromptFields) -> list[FunctionDeclaration]:
    """Return all functions that may be called.

    Raises:
        InvalidRequestError: a tool is of another kind, or malformed.
    """
    found: list[FunctionDeclaration] = []
    for index, tool in enumerate(fields.tools or ()):
        for kind, value in tool.items():
            param = f"tools[{index}].{kind}"
            if kind != "functionDeclarations" and value is not None:
                raise InvalidRequestError(
                    f"{param}: only functionDeclarations are served here", param
                )
        declared = tool.get("functionDeclarations") or []
        found += convert_body(declared, list[FunctionDeclaration])
    return found


def template_tool(declared: FunctionDeclaration) -> JsonObject:
    """Return a function as templates know it."""
    function: JsonObject = {"name": declared.name}
    if declared.description is not None:
        function["description"] = declared.description
    if (parameters := _parameters(declared)) is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def tool_fields(
    declared: Sequence[FunctionDeclaration], config: ToolConfig | None, bound: Bound | None
) -> ToolFields:
    """Return which functions may be called. VALIDATED is read as AUTO."""
    calling = None if config is None else config.function_calling_config
    mode = "AUTO" if calling is None or calling.mode is None else calling.mode
    allowed = None if calling is None else calling.allowed_function_names
    if allowed and mode != "ANY":
        param = f"{_CONFIG}.allowedFunctionNames"
        raise InvalidRequestError(f"{param}: needs the mode ANY", param)
    return ToolFields(
        functions={each.name: Function(each.name, _parameters(each)) for each in declared},
        choice=_MODES.get(mode, "auto"),
        only=allowed or (),
        bound=bound,
        param=_CONFIG,
    )


def _parameters(declared: FunctionDeclaration) -> JsonObject | None:
    if declared.parameters_json_schema is not None:
        return declared.parameters_json_schema
    if declared.parameters is None:
        return None
    return json_schema(
        declared.parameters, f"tools.functionDeclarations.{declared.name}.parameters"
    )


def _system(instruction: Content | str) -> list[JsonObject]:
    param = "systemInstruction"
    if isinstance(instruction, str):
        return [{"role": "system", "content": instruction}]
    parts = [_text(part, f"{param}.parts[{i}]") for i, part in enumerate(instruction.parts or ())]
    return [{"role": "system", "content": parts}] if parts else []


def _add(messages: list[JsonObject], content: Content, param: str) -> None:
    """Add a turn: the responses of functions are messages of their own."""
    if content.role not in _ROLES:
        raise InvalidRequestError(f"{param}.role: {content.role!r} is neither user nor model",
                                  f"{param}.role")  # fmt: skip
    role, n_before = _ROLES[content.role], len(messages)
    turn = _unfinished(messages) if role == "assistant" else None
    for index, part in enumerate(content.parts or ()):
        if part.function_response is not None:
            _add_response(messages, part)
            turn = None
            continue
        if part.thought:
            continue
        if turn is None:
            turn = {"role": role, "content": []}
            messages.append(turn)
        _add_part(turn, part, f"{param}.parts[{index}]")
    if len(messages) == n_before and turn is None:  # an empty turn is one, too
        messages.append({"role": role, "content": []})


def _unfinished(messages: Sequence[JsonObject]) -> JsonObject | None:
    """Return the model's turn, if it was the last: chats keep each chunk of a stream as its own."""
    if not messages or messages[-1]["role"] != "assistant":
        return None
    return messages[-1]


def _add_part(turn: JsonObject, part: Part, param: str) -> None:
    if part.function_call is None:
        parts = turn["content"]
        assert isinstance(parts, list)
        parts.append(_text(part, param))
        return
    call = part.function_call
    if turn["role"] != "assistant":
        raise InvalidRequestError(f"{param}.functionCall: only the model calls functions", param)
    calls = turn.setdefault("tool_calls", [])
    assert isinstance(calls, list)
    function = {"name": call.name, "arguments": call.args or {}}
    calls.append({"id": call.id or call.name, "type": "function", "function": function})


def _add_response(messages: list[JsonObject], part: Part) -> None:
    """Add what a function gave: a text under `result` or `output` alone, or else as JSON."""
    response = part.function_response
    assert response is not None
    given = response.response or {}
    only = next(iter(given.values())) if len(given) == 1 else None
    plain = isinstance(only, str) and next(iter(given)) in ("result", "output")
    text = only if plain else json.dumps(given, ensure_ascii=False)
    messages.append({"role": "tool", "tool_call_id": response.id or response.name,
                     "name": response.name, "content": text})  # fmt: skip


def _text(part: Part, param: str) -> JsonObject:
    for name in _UNREAD:
        if getattr(part, name) is not None:
            kind = msgspec.structs.fields(Part)
            shown = next(field.encode_name for field in kind if field.name == name)
            raise InvalidRequestError(f"{param}.{shown}: cannot be read here; send text", param)
    if part.text is None:
        raise InvalidRequestError(f"{param}: a text, a functionCall or a functionResponse"
                                  " is needed", param)  # fmt: skip
    return {"type": "text", "text": part.text}
