"""What a chat body says of tools: which may be called, and how its answer is read and bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.api.bodies import convert_part
from gateway.api.openai_formats import Bound
from gateway.errors import InvalidRequestError
from gateway.service import Served
from prefixcache.text.tools import ToolFormat, fallback_format, forced_calls
from prefixcache.types import Grammar, GrammarKind

JsonObject = dict[str, object]
Name = Annotated[str, Meta(min_length=1, max_length=128)]


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function that may be called. Its description is for the template alone."""

    name: Name
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One of the tools."""

    type: Literal["function"]
    function: Function


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


@dataclass(frozen=True, slots=True)
class ToolFields:
    """What a chat body says of tools, and what its answer must follow otherwise."""

    tools: Sequence[JsonObject]
    choice: ToolChoice
    is_parallel: bool
    bound: Bound | None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How an answer's text is read, and what it must follow."""

    format: ToolFormat | None  # None: all text is content
    names: frozenset[str]  # of the tools
    is_sure: bool  # calls are well formed, for a grammar sees to that
    is_single: bool  # only the first call counts
    bound: Bound | None

    def shown_ids(self, served: Served) -> tuple[int, ...]:
        """Return the special tokens that must be in the text for calls to be seen."""
        tokenizer = served.encoder.tokenizer
        marks = () if self.format is None else self.format.marks
        found = [tokenizer.id_of(mark) for mark in marks]
        return tuple(i for i in found if i is not None and i in tokenizer.special_ids)


def tool_use(body: ToolFields, served: Served) -> ToolUse:
    """Return how the answer to `body` is read and bound.

    Raises:
        InvalidRequestError: a tool is malformed, or one is to be called that is not there.
    """
    functions = _functions(body.tools)
    allowed = _must_call(body.choice, functions)
    is_single = not body.is_parallel or isinstance(body.choice, NamedTool)
    own, names = served.encoder.tool_format, frozenset(functions)
    if allowed is not None:
        grammar = _calls(allowed, own or fallback_format(), served, is_single=is_single)
        bound = Bound("tools", grammar)
        return ToolUse(own or fallback_format(), names, True, is_single, bound)
    asked = body.bound
    if not functions or body.choice == "none" or own is None:
        return ToolUse(None, names, False, is_single, asked)
    if asked is None or asked.grammar.kind is not GrammarKind.JSON_SCHEMA:
        return ToolUse(own, names, False, is_single, asked)
    grammar = _calls(functions, own, served, is_single=is_single, otherwise=asked.grammar)
    return ToolUse(own, names, True, is_single, Bound("tools", grammar))


def _functions(tools: Sequence[JsonObject]) -> dict[str, Function]:
    found = [tool.function for tool in convert_part(tools, list[Tool], "tools")]
    return {function.name: function for function in found}


def _must_call(choice: ToolChoice, functions: dict[str, Function]) -> dict[str, Function] | None:
    """Return the functions of which one has to be called, or None when none has to be."""
    if choice == "required":
        if not functions:
            raise InvalidRequestError("tool_choice: required needs tools", "tool_choice")
        return functions
    if isinstance(choice, NamedTool):
        name = choice.function.name
        if name not in functions:
            raise InvalidRequestError(
                f"tool_choice: there is no tool named {name!r}", "tool_choice"
            )
        return {name: functions[name]}
    return None


def _calls(
    functions: Mapping[str, Function],
    tool_format: ToolFormat,
    served: Served,
    *,
    is_single: bool,
    otherwise: Grammar | None = None,
) -> Grammar:
    return forced_calls(
        {name: {"type": "object"} | (f.parameters or {}) for name, f in functions.items()},
        tool_format,
        served.encoder.tokenizer,
        may_be_many=not is_single,
        strict=[name for name, function in functions.items() if function.strict],
        otherwise=otherwise,
    )
