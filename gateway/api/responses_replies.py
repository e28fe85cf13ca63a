"""The objects that a response is made of."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from gateway.api.openai_scores import ChatToken
from gateway.api.responses_models import (
    FlatToolChoice,
    InputItem,
    ResponseBody,
    ResponseCacheOptions,
    ResponsePrompt,
    TextFormat,
    TextOptions,
)
from gateway.api.tool_use import JsonObject
from prefixcache.types import Retain, Usage

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]

_HALF_HOUR_SECONDS = 1800.0


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    annotations: list[str] = []
    logprobs: list[ChatToken] = []


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """What the model said."""

    id: str
    role: str = "assistant"
    status: ItemStatus
    content: list[OutputText]


class OutputCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A function that the model calls; its arguments are JSON, if nothing cut them short."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem = OutputMessage | OutputCall


class WrittenDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What was left in the cache, by how long it is kept for sure."""

    ttl_30m_tokens: int
    ttl_12h_tokens: int


class InputDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the input's tokens were read from the cache, and which were left there."""

    cached_tokens: int
    cache_write_tokens: int
    cache_write_tokens_details: WrittenDetails


class OutputDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the output's tokens were no text."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's account of tokens; `input_tokens` includes the cached ones."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage, retain: tuple[Retain, ...]) -> ResponseUsage:
        """Return `usage` as OpenAI writes it; what `retain` keeps for longer is told apart."""
        longest = max((r.n_tokens for r in retain if r.seconds > _HALF_HOUR_SECONDS), default=0)
        written = usage.written_tokens
        kept_long = min(written, max(longest - usage.cached_tokens, 0))
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputDetails(
                cached_tokens=usage.cached_tokens,
                cache_write_tokens=written,
                cache_write_tokens_details=WrittenDetails(
                    ttl_30m_tokens=written - kept_long, ttl_12h_tokens=kept_long
                ),
            ),
            output_tokens=usage.output_tokens,
            total_tokens=usage.prompt_tokens + usage.output_tokens,
        )


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response ended early."""

    reason: str


class ResponseError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed in its stream."""

    code: str
    message: str


class CacheHit(msgspec.Struct, frozen=True, tag_field="type", tag="cache_hit"):
    """The prompt begins with all that the compared one had."""


class CacheMiss(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cache_miss"):
    """The prompts part."""

    reason: str
    cache_missed_tokens: int  # of this prompt, from where they part
    comparison_reusable_tokens: int  # that both begin with


class NothingToCompare(
    msgspec.Struct, frozen=True, tag_field="type", tag="comparison_response_not_found"
):
    """The response to compare with is not kept."""


class Unavailable(msgspec.Struct, frozen=True, tag_field="type", tag="unavailable"):
    """The prompts begin alike, but nothing of that was in the cache any more."""


CacheDiagnostics = CacheHit | CacheMiss | NothingToCompare | Unavailable


class AppliedCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that held for a response."""

    mode: Literal["implicit", "explicit"]
    ttl: str
    comparison_response_id: str | None = None

    @classmethod
    def of(cls, asked: ResponseCacheOptions) -> AppliedCacheOptions:
        """Return what `asked` comes to."""
        return cls(
            mode=asked.mode or "implicit",
            ttl=asked.ttl or "30m",
            comparison_response_id=asked.comparison_response_id,
        )


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/responses answers with this, and its stream begins and ends with it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt: ResponsePrompt | None = None
    prompt_cache_diagnostics: CacheDiagnostics | None = None
    prompt_cache_key: str | None
    prompt_cache_options: AppliedCacheOptions | None
    prompt_cache_retention: str | None
    reasoning: JsonObject
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: TextOptions
    tool_choice: FlatToolChoice
    tools: list[JsonObject]
    top_logprobs: int
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, str]

    @classmethod
    def begun(cls, body: ResponseBody, *, id: str, created_at: int, model: str) -> Response:
        """Return a response to `body` that has said nothing yet."""
        options = body.prompt_cache_options
        return cls(
            id=id,
            created_at=created_at,
            status="in_progress",
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            model=model,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            prompt=body.prompt,
            prompt_cache_key=body.prompt_cache_key,
            prompt_cache_options=None if options is None else AppliedCacheOptions.of(options),
            prompt_cache_retention=body.prompt_cache_retention,
            reasoning={"effort": None, "summary": None},
            safety_identifier=body.safety_identifier,
            store=body.store is not False,
            temperature=1.0 if body.temperature is None else body.temperature,
            text=_text_of(body.text),
            tool_choice=body.tool_choice or "auto",
            tools=[msgspec.to_builtins(tool) for tool in body.tools or ()],
            top_logprobs=body.top_logprobs or 0,
            top_p=1.0 if body.top_p is None else body.top_p,
            user=body.user,
            metadata=body.metadata or {},
        )


class ItemList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items."""

    object: str = "list"
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens a prompt has."""

    object: str = "response.input_tokens"
    input_tokens: int


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A response is forgotten."""

    id: str
    object: str = "response"
    deleted: bool = True


def _text_of(asked: TextOptions | None) -> TextOptions:
    asked = asked or TextOptions()
    return asked if asked.format is not None else replace(asked, format=TextFormat(type="text"))
