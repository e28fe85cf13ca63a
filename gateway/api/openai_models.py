"""The request bodies of the OpenAI dialect. Null is the same as left out, everywhere.

Fields that are not named here are ignored. Those that would change the answer and are not
built yet are named here all the same, so that they can be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.api.bodies import Salt, Seed
from gateway.api.named_prompts import NamedPrompt
from gateway.api.openai_cache import Breakpoint, CacheKey, PromptCacheOptions
from gateway.api.openai_formats import FormatFields
from gateway.api.openai_tools import ToolChoice
from gateway.api.tool_use import JsonObject

Count = Annotated[int, Meta(ge=1)]
TokenNumber = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
OptionName = Annotated[str, Meta(max_length=64)]
OptionText = Annotated[str, Meta(max_length=4096)]  # a template may write it once a message
OptionNumber = Annotated[int, Meta(ge=-(2**20), le=2**20)]  # a template may multiply texts by it
TemplateOptions = dict[OptionName, OptionText | OptionNumber | float | bool | None]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]
Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Our extension: whether this request uses cached prefixes, and leaves its own behind."""

    read: bool | None = None
    store: bool | None = None


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # chunks are padded to multiples of 64 bytes


class ContentPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message; only text parts can be read."""

    type: str
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: Breakpoint | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[JsonObject] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    function_call: JsonObject | None = None  # in the old form


class GenerationBody(FormatFields, frozen=True, kw_only=True):
    """The fields that both kinds of completion share."""

    model: str
    max_tokens: Annotated[int, Meta(ge=0)] | None = None  # 0: only with echo
    min_tokens: Annotated[int, Meta(ge=0)] | None = None  # extension
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None  # OpenAI's default: 1
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None  # extension; 0 and -1: all
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None  # extension
    logit_bias: dict[str, Bias] | None = None  # by token id, in decimal
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None  # extension
    seed: Seed | None = None
    stop: StopText | list[StopText] | None = None
    stop_token_ids: list[TokenNumber] | None = None  # extension
    ignore_eos: bool | None = None  # extension
    n: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # read by nobody, as is the next one
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    service_tier: str | None = None  # answered with "default"
    metadata: Metadata | None = None  # given back
    cache_salt: Salt | None = None  # extension; missing is the tenant's default
    cache: CacheOptions | None = None  # extension
    priority: Priority | None = None  # extension, as vLLM's: the lowest is served first
    deadline_seconds: Annotated[float, Meta(gt=0)] | None = None  # extension


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    prompt: NamedPrompt | None = None  # extension: a published one
    max_completion_tokens: Count | None = None  # wins over max_tokens
    tools: list[JsonObject] | None = None
    tool_choice: ToolChoice | None = None  # auto where there are tools
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None  # needs `logprobs`

    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_key: CacheKey | None = None  # no effect with one worker
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None  # the longest; no effect
    store: bool | None = None  # accepted; completions are not kept
    reasoning_effort: str | None = None  # the model has no such dials
    verbosity: Literal["low", "medium", "high"] | None = None

    functions: list[JsonObject] | None = None
    function_call: str | JsonObject | None = None
    modalities: list[str] | None = None
    audio: JsonObject | None = None
    prediction: JsonObject | None = None
    web_search_options: JsonObject | None = None
    moderation: JsonObject | None = None

    add_generation_prompt: bool | None = None  # these four are vLLM's
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: TemplateOptions | None = None


Prompt = str | list[str | TokenNumber | list[TokenNumber]]  # a list holds one kind
_PROMPT_SCHEMA = msgspec.json.schema(Prompt)


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """POST /v1/completions. The prompt is left for later: it can be millions of token ids."""

    prompt: Annotated[msgspec.Raw, Meta(extra_json_schema=_PROMPT_SCHEMA)]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None

    suffix: str | None = None
    best_of: Count | None = None


CHAT_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "functions": ([],),
    "function_call": ("auto", "none"),
    "modalities": (["text"], []),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "moderation": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
}
COMPLETION_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "suffix": ("",),
}

CHAT_DECODER = msgspec.json.Decoder(ChatBody)
COMPLETION_DECODER = msgspec.json.Decoder(CompletionBody)
PROMPT_DECODER: msgspec.json.Decoder[Prompt] = msgspec.json.Decoder(Prompt)
