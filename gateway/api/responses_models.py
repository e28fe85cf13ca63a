"""The body of POST /v1/responses. Null is the same as left out, everywhere.

Fields that are not named here are ignored. Those that would change the answer and are not built are
named here all the same, so that they can be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.api.bodies import Salt, Seed
from gateway.api.named_prompts import PromptName, Version
from gateway.api.openai_cache import Breakpoint, CacheKey, PromptCacheOptions
from gateway.api.openai_formats import Schema
from gateway.api.openai_models import CacheOptions, Metadata, Priority
from gateway.api.tool_use import JsonObject

Name = Annotated[str, Meta(min_length=1, max_length=128)]
ItemId = Annotated[str, Meta(max_length=512)]
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",  # there is none to include, of this and of what follows
    "file_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class InputPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a message, or of a function's output."""

    type: str
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: Breakpoint | None = None


class InputItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One item of a conversation; which fields it needs, its type says.

    The types are message (also where there is none), function_call, function_call_output and
    reasoning, which is passed over.
    """

    id: ItemId | None = None
    type: str | None = None
    role: str | None = None  # of a message
    content: str | list[InputPart] | None = None
    status: str | None = None
    phase: str | None = None
    call_id: ItemId | None = None  # of calls and their outputs
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class FlatTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that may be called. Other types of tools are refused."""

    type: str
    name: Name | None = None
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ToolReference(msgspec.Struct, frozen=True, kw_only=True):
    """One of the tools."""

    type: str
    name: Name | None = None


class ChosenTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool choice that is an object: one function, or some of the tools."""

    type: str
    name: Name | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[ToolReference] | None = None


FlatToolChoice = Literal["none", "auto", "required"] | ChosenTool


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer's text must follow."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: Schema | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the text is to be; `verbosity` has no effect."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseCacheOptions(PromptCacheOptions, frozen=True, kw_only=True):
    """As in chat, and more."""

    prewarm: bool | None = None  # the prompt is read, and nothing said
    comparison_response_id: ItemId | None = None  # what does this prompt share with that one's?


class ResponseStreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream carries beside the events."""

    include_obfuscation: bool | None = None


class ResponsePrompt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A published prompt that the conversation begins with; its id is its name."""

    id: PromptName
    version: Annotated[str, Meta(max_length=10)] | Version | None = None  # None: the current one
    variables: JsonObject | None = None  # our prompts have none


class ResponseBody(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/responses."""

    model: str
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    prompt: ResponsePrompt | None = None  # in place of instructions
    previous_response_id: ItemId | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[Include] | None = None
    text: TextOptions | None = None
    tools: list[FlatTool] | None = None
    tool_choice: FlatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None  # true
    metadata: Metadata | None = None
    prompt_cache_options: ResponseCacheOptions | None = None
    prompt_cache_key: CacheKey | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None
    service_tier: str | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None  # of tools that are built in
    truncation: Literal["auto", "disabled"] | None = None
    reasoning: JsonObject | None = None  # the model has no such dial
    seed: Seed | None = None  # extensions, as in chat
    cache_salt: Salt | None = None
    cache: CacheOptions | None = None
    priority: Priority | None = None
    deadline_seconds: Annotated[float, Meta(gt=0)] | None = None

    background: bool | None = None
    conversation: str | JsonObject | None = None
    context_management: list[JsonObject] | None = None
    moderation: JsonObject | None = None


RESPONSE_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "background": (False,),
    "conversation": (),
    "context_management": ([],),
    "moderation": (),
    "truncation": ("disabled",),
}

RESPONSE_DECODER = msgspec.json.Decoder(ResponseBody)
