"""The request bodies of the Gemini dialect, in camelCase or snake_case. Null is left out.

Fields that are not named here are ignored; the manual's page says which those are. Those that
would change the answer and are not built are named here, so that they can be refused.
"""

from __future__ import annotations

from threading import Lock
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from gateway.api.bodies import Salt, Seed, convert_body, decode_body
from gateway.api.tool_use import JsonObject

_T = TypeVar("_T")

# What stands under these is the client's own: its keys stay as they are.
_OPAQUE = frozenset(
    {"args", "response", "parameters", "parametersJsonSchema", "responseSchema",
     "responseJsonSchema", "labels"}
)  # fmt: skip

Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Schema = JsonObject | bool


class _Fields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The dialect's objects have camelCase names."""


class FunctionCall(_Fields, frozen=True, kw_only=True):
    """An earlier call of the model's."""

    name: Name
    id: str | None = None
    args: JsonObject | None = None


class FunctionResponse(_Fields, frozen=True, kw_only=True):
    """What a call gave."""

    name: Name
    id: str | None = None
    response: JsonObject | None = None


class Part(_Fields, frozen=True, kw_only=True):
    """A part of a turn: one of text, call and response. Others are refused by their name."""

    text: str | None = None
    thought: bool | None = None  # with a text: passed over
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None
    inline_data: JsonObject | None = None
    file_data: JsonObject | None = None
    executable_code: JsonObject | None = None
    code_execution_result: JsonObject | None = None


class Content(_Fields, frozen=True, kw_only=True):
    """One turn."""

    parts: list[Part] | None = None
    role: str | None = None  # user or model; None: user


class FunctionDeclaration(_Fields, frozen=True, kw_only=True):
    """A function that may be called."""

    name: Name
    description: str | None = None
    parameters: JsonObject | None = None  # an OpenAPI schema
    parameters_json_schema: JsonObject | None = None


class FunctionCallingConfig(_Fields, frozen=True, kw_only=True):
    """Whether functions are called."""

    mode: Literal["MODE_UNSPECIFIED", "AUTO", "ANY", "NONE", "VALIDATED"] | None = None
    allowed_function_names: list[Name] | None = None


class ToolConfig(_Fields, frozen=True, kw_only=True):
    """How tools are used."""

    function_calling_config: FunctionCallingConfig | None = None


class GenerationConfig(_Fields, frozen=True, kw_only=True):
    """How answers are chosen."""

    candidate_count: Annotated[int, Meta(ge=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[float, Meta(ge=0)] | None = None  # a whole number, which clients send as 40.0
    seed: Seed | None = None
    stop_sequences: list[StopText] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    response_logprobs: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None  # needs `response_logprobs`
    response_mime_type: Literal["text/plain", "application/json", "text/x.enum"] | None = None
    response_schema: JsonObject | None = None  # an OpenAPI schema
    response_json_schema: Schema | None = None
    response_modalities: list[str] | None = None
    speech_config: JsonObject | None = None


class PromptFields(_Fields, frozen=True, kw_only=True):
    """What makes a prompt."""

    contents: list[Content] | None = None
    system_instruction: Content | str | None = None
    tools: list[JsonObject] | None = None
    tool_config: ToolConfig | None = None


class GenerateBody(PromptFields, frozen=True, kw_only=True):
    """POST :generateContent and :streamGenerateContent."""

    model: str | None = None  # the path's counts
    generation_config: GenerationConfig | None = None
    cached_content: str | None = None
    cache_salt: Salt | None = None  # extension; missing is the tenant's default


class CountBody(_Fields, frozen=True, kw_only=True):
    """POST :countTokens: contents alone, or a whole request."""

    contents: list[Content] | None = None
    generate_content_request: GenerateBody | None = None


class CacheBody(PromptFields, frozen=True, kw_only=True):
    """POST and PATCH of cachedContents."""

    model: str | None = None
    display_name: Annotated[str, Meta(max_length=128)] | None = None
    ttl: str | None = None
    expire_time: str | None = None


_ANY: msgspec.json.Decoder[object] = msgspec.json.Decoder()


def read_fields(kind: type[_T], data: bytes, *, turn: Lock) -> _T:
    """Return a body as `kind`, whichever way its fields are spelled.

    Raises:
        InvalidRequestError: as `decode_body`.
    """
    return convert_body(_camel(decode_body(_ANY, data, turn=turn)), kind)


def _camel(value: object) -> object:
    """Return `value` with its snake_case keys in camelCase, but for what is the client's own."""
    if isinstance(value, list):
        return [_camel(each) for each in value]
    if not isinstance(value, dict):
        return value
    found: JsonObject = {}
    for key, inner in value.items():
        name = _camel_name(key)
        found[name] = inner if name in _OPAQUE else _camel(inner)
    return found


def _camel_name(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word.capitalize() for word in rest) if first else key
