"""What a response's body says of tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from gateway.api.responses_models import ChosenTool, FlatTool, FlatToolChoice, ToolReference
from gateway.api.tool_use import Function, JsonObject, ToolFields, allowed_fields
from gateway.api.wishes import Bound
from gateway.errors import InvalidRequestError


def response_tools(
    tools: Sequence[FlatTool],
    choice: FlatToolChoice | None,
    *,
    is_parallel: bool,
    bound: Bound | None,
) -> ToolFields:
    """Return what a body says of tools.

    Raises:
        InvalidRequestError: a tool is malformed or none that can be called here, or the choice is
            of what is not there.
    """
    functions = {name: _function(tool, name) for name, tool in _by_name(tools).items()}
    if choice is None or isinstance(choice, str):
        return ToolFields(
            functions=functions, choice=choice or "auto", is_single=not is_parallel, bound=bound
        )
    names, is_named = _chosen(choice), choice.type == "function"
    mode = "required" if is_named else choice.mode or "auto"
    is_single = is_named or not is_parallel
    return allowed_fields(functions, names, mode, is_single=is_single, bound=bound)


def shown_tools(tools: Sequence[FlatTool]) -> list[JsonObject]:
    """Return checked tools as chat templates know them, the same as in a chat's body."""
    shown: list[JsonObject] = []
    for tool in tools:
        fields = {field: getattr(tool, field) for field in _SHOWN}
        function = {field: value for field, value in fields.items() if value is not None}
        shown.append({"type": "function", "function": function})
    return shown


def flat_tools(tools: Iterable[JsonObject]) -> list[FlatTool]:
    """Return tools in the form of a chat's body, which were checked, in this dialect's."""
    functions = [msgspec.convert(tool["function"], dict[str, object]) for tool in tools]
    return [msgspec.convert({"type": "function", **each}, FlatTool) for each in functions]


_SHOWN = ("name", "description", "parameters", "strict")


def _by_name(tools: Sequence[FlatTool]) -> dict[str, FlatTool]:
    found: dict[str, FlatTool] = {}
    for index, tool in enumerate(tools):
        if tool.type != "function":
            raise InvalidRequestError(
                f"tools[{index}].type: tools of type {tool.type!r} are not built in here; declare"
                " what you call yourself as a function",
                f"tools[{index}].type",
            )
        if tool.name is None:
            raise InvalidRequestError(
                f"tools[{index}].name: a function needs it", f"tools[{index}].name"
            )
        found[tool.name] = tool
    return found


def _function(tool: FlatTool, name: str) -> Function:
    return Function(name, tool.parameters, bool(tool.strict))


def _chosen(choice: ChosenTool) -> list[str]:
    """Return the names that `choice` leaves."""
    references: Sequence[ChosenTool | ToolReference]
    match choice.type:
        case "function":
            references = [choice]
        case "allowed_tools":
            references = choice.tools or ()
        case _:
            raise InvalidRequestError(
                f"tool_choice.type: {choice.type!r} is neither function nor allowed_tools",
                "tool_choice.type",
            )
    names = [each.name for each in references if each.type in ("function", choice.type)]
    found = [name for name in names if name is not None]
    if not found:
        raise InvalidRequestError("tool_choice: it names no function", "tool_choice")
    return found
