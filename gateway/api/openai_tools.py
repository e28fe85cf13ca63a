"""What a chat body says of tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.api.bodies import convert_part
from gateway.api.tool_use import Function, JsonObject, ToolFields
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


class NamedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool choice that is one function."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def tool_fields(
    tools: Sequence[JsonObject],
    choice: ToolChoice,
    *,
    is_parallel: bool,
    bound: Bound | None,
) -> ToolFields:
    """Return what a body says of tools. Raises InvalidRequestError: a tool is malformed."""
    is_named = isinstance(choice, NamedTool)
    return ToolFields(
        functions=_functions(tools),
        choice="required" if isinstance(choice, NamedTool) else choice,
        only=[choice.function.name] if isinstance(choice, NamedTool) else (),
        is_single=is_named or not is_parallel,
        bound=bound,
    )


def _functions(tools: Sequence[JsonObject]) -> dict[str, Function]:
    found = [tool.function for tool in convert_part(tools, list[Tool], "tools")]
    return {f.name: Function(f.name, f.parameters, bool(f.strict)) for f in found}
