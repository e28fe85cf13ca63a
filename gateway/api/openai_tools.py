"""What a chat body says of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.api.bodies import convert_part
from gateway.api.tool_use import Function, JsonObject, ToolFields, allowed_fields
from gateway.api.wishes import Bound

Name = Annotated[str, Meta(min_length=1, max_length=128)]


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that may be called. Its description is for the template alone."""

    name: Name
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One of the tools."""

    type: Literal["function"]
    function: FunctionTool


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """The function of an earlier call; its arguments are JSON text, or an object at once."""

    name: Name
    arguments: str | JsonObject | None = None


class EarlierCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call in the conversation so far."""

    function: CalledFunction
    id: str | None = None


class FunctionName(msgspec.Struct, frozen=True, kw_only=True):
    """The function that must be called."""

    name: Name


class NamedTool(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A tool choice that is one function."""

    function: FunctionName


class AllowedList(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the tools, and whether one of them has to be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1)]


class AllowedTools(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="allowed_tools"
):
    """A tool choice that is some of the tools. The prompt keeps all, so that it stays cached."""

    allowed_tools: AllowedList


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedTools


def tool_fields(
    tools: Sequence[JsonObject],
    choice: ToolChoice,
    *,
    is_parallel: bool,
    bound: Bound | None,
) -> ToolFields:
    """Return what a body says of tools.

    Raises:
        InvalidRequestError: a tool is malformed, or some are allowed that cannot be.
    """
    functions = _functions(tools)
    match choice:
        case NamedTool(function=function):
            return ToolFields(
                functions=functions,
                choice="required",
                only=[function.name],
                is_single=True,
                bound=bound,
            )
        case AllowedTools(allowed_tools=allowed):
            names = [tool.function.name for tool in allowed.tools]
            is_single = not is_parallel
            return allowed_fields(functions, names, allowed.mode, is_single=is_single, bound=bound)
        case _:
            return ToolFields(
                functions=functions, choice=choice, is_single=not is_parallel, bound=bound
            )


def _functions(tools: Sequence[JsonObject]) -> dict[str, Function]:
    found = [tool.function for tool in convert_part(tools, list[Tool], "tools")]
    return {f.name: Function(f.name, f.parameters, bool(f.strict)) for f in found}
