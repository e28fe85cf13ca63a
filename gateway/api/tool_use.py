"""Which tools an answer may call, in the words of no dialect: how it is read and bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.api.wishes import Bound
from gateway.errors import InvalidRequestError
from gateway.served import Served
from prefixcache.text.tools import ToolFormat, fallback_format, forced_calls
from prefixcache.types import Grammar, GrammarKind

JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called."""

    name: str
    parameters: JsonObject | None = None  # the JSON schema of its arguments; None: any object
    strict: bool = False  # keywords of the schema that cannot be enforced are refused


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFields:
    """What a body says of tools, and what its answer must follow otherwise."""

    functions: Mapping[str, Function]
    choice: Literal["none", "auto", "required"] = "auto"
    only: Sequence[str] = ()  # with `required`: one of these has to be called; empty: of all
    is_single: bool = False  # only the first call counts
    bound: Bound | None = None
    param: str = "tool_choice"  # the field that `choice` and `only` came from


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How an answer's text is read, and what it must follow."""

    format: ToolFormat | None  # None: all text is content
    names: Mapping[str, JsonObject]  # of the tools, and the schemas of their arguments
    is_sure: bool  # calls are well formed, for a grammar sees to that
    is_single: bool  # only the first call counts
    bound: Bound | None

    def shown_ids(self, served: Served) -> tuple[int, ...]:
        """Return the special tokens that must be in the text for calls to be seen."""
        tokenizer = served.encoder.tokenizer
        marks = () if self.format is None else self.format.marks
        found = [tokenizer.id_of(mark) for mark in marks]
        return tuple(i for i in found if i is not None and i in tokenizer.special_ids)


def tool_use(fields: ToolFields, served: Served) -> ToolUse:
    """Return how an answer is read and bound.

    Raises:
        InvalidRequestError: a tool is to be called that is not there.
    """
    functions, asked = fields.functions, fields.bound
    allowed = _must_call(fields)
    own, names = served.encoder.tool_format, _schemas(functions)
    if allowed is not None:
        grammar = _calls(allowed, own or fallback_format(), served, is_single=fields.is_single)
        bound = Bound("tools", grammar)
        return ToolUse(own or fallback_format(), names, True, fields.is_single, bound)
    if not functions or fields.choice == "none" or own is None:
        return ToolUse(None, names, False, fields.is_single, asked)
    if asked is None or asked.grammar.kind is not GrammarKind.JSON_SCHEMA:
        return ToolUse(own, names, False, fields.is_single, asked)
    grammar = _calls(functions, own, served, is_single=fields.is_single, otherwise=asked.grammar)
    return ToolUse(own, names, True, fields.is_single, Bound("tools", grammar))


def _must_call(fields: ToolFields) -> Mapping[str, Function] | None:
    """Return the functions of which one has to be called, or None when none has to be."""
    if fields.choice != "required":
        return None
    for name in fields.only:
        if name not in fields.functions:
            raise InvalidRequestError(
                f"{fields.param}: there is no tool named {name!r}", fields.param
            )
    if not fields.functions:
        raise InvalidRequestError(f"{fields.param}: a required call needs tools", fields.param)
    return {name: fields.functions[name] for name in fields.only or fields.functions}


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


def allowed_fields(
    functions: Mapping[str, Function],
    names: Sequence[str],
    mode: Literal["auto", "required"],
    *,
    is_single: bool,
    bound: Bound | None,
) -> ToolFields:
    """Return what a body says that allows only some of its tools.

    The prompt keeps all of them, so that it stays cached; a grammar holds the model to those that
    are allowed, and so needs a call to be required.

    Raises:
        InvalidRequestError: a tool is allowed that is not there, or `auto` leaves some out.
    """
    missing = next((name for name in names if name not in functions), None)
    if missing is not None:
        raise InvalidRequestError(f"tool_choice: there is no tool named {missing!r}", "tool_choice")
    if mode == "auto" and set(names) != set(functions):
        raise InvalidRequestError(
            "tool_choice: the mode auto cannot keep a model from tools that it is shown; require"
            " a call, or leave those tools out",
            "tool_choice",
        )
    only = tuple(names) if mode == "required" else ()
    return ToolFields(functions=functions, choice=mode, only=only, is_single=is_single, bound=bound)


def _schemas(functions: Mapping[str, Function]) -> dict[str, JsonObject]:
    return {name: function.parameters or {} for name, function in functions.items()}
