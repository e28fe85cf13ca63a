"""What an answer's text must follow: `response_format`, and the fields that vLLM has for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.api.wishes import Bound
from gateway.errors import InvalidRequestError
from prefixcache.types import Grammar, GrammarKind

_ANY_OBJECT = '{"type": "object"}'
_MAX_CHOICES = 1024

Schema = dict[str, object] | bool
Choices = Annotated[
    list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=_MAX_CHOICES)
]


class NamedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """The schema of a `json_schema` format. Without `strict`, unknown keywords are passed over."""

    name: str
    schema: Schema | None = None  # None: any JSON object
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's field."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's field: one of these."""

    json: Schema | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None


class FormatFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a body that say what its answer must follow; one of them at most."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None  # extension
    guided_json: Schema | str | None = None  # extensions, vLLM's older names
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None


def bound_of(body: FormatFields) -> Bound | None:
    """Return what the answer to `body` must follow, or None when that is nothing.

    Raises:
        InvalidRequestError: more than one thing, a format without its schema, or a schema
            that is none.
    """
    found = [Bound(*each) for each in _grammars(body)]
    if len(found) > 1:
        names = ", ".join(bound.param for bound in found)
        param = found[1].param
        raise InvalidRequestError(f"{param}: only one may be given of {names}", param)
    return found[0] if found else None


def _grammars(body: FormatFields) -> Iterator[tuple[str, Grammar]]:
    """Yield each field that asks for something, and what."""
    if body.response_format is not None:
        grammar = _of_format(body.response_format)
        if grammar is not None:
            yield "response_format", grammar
    older = StructuredOutputs(
        json=body.guided_json,
        regex=body.guided_regex,
        choice=body.guided_choice,
        grammar=body.guided_grammar,
    )
    yield from _of_outputs(older, "guided_")
    if body.structured_outputs is not None:
        yield from _of_outputs(body.structured_outputs, "structured_outputs.")


def _of_format(asked: ResponseFormat) -> Grammar | None:
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return Grammar(GrammarKind.JSON_SCHEMA, _ANY_OBJECT)
    if asked.json_schema is None:
        param = "response_format.json_schema"
        raise InvalidRequestError(f"{param}: the type json_schema needs it", param)
    schema = asked.json_schema.schema
    text = _ANY_OBJECT if schema is None else _text(schema)
    return Grammar(GrammarKind.JSON_SCHEMA, text, is_lenient=not asked.json_schema.strict)


def _of_outputs(asked: StructuredOutputs, prefix: str) -> Iterator[tuple[str, Grammar]]:
    """Yield what each field asks for, under its name after `prefix`."""
    if asked.json is not None:
        param = f"{prefix}json"
        text = _checked(asked.json, param) if isinstance(asked.json, str) else _text(asked.json)
        yield param, Grammar(GrammarKind.JSON_SCHEMA, text)
    if asked.json_object:
        yield f"{prefix}json_object", Grammar(GrammarKind.JSON_SCHEMA, _ANY_OBJECT)
    if asked.regex is not None:
        yield f"{prefix}regex", Grammar(GrammarKind.REGEX, asked.regex)
    if asked.choice is not None:
        yield f"{prefix}choice", Grammar(GrammarKind.CHOICE, _text(asked.choice))
    if asked.grammar is not None:
        yield f"{prefix}grammar", Grammar(GrammarKind.EBNF, asked.grammar)


def _checked(text: str, param: str) -> str:
    """Return a schema that came as JSON text, once it is known to be one."""
    try:
        msgspec.json.decode(text, type=Schema)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequestError(f"{param}: not a JSON schema: {error}", param) from error
    return text


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
