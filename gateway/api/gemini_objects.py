"""The objects that the answers of the Gemini dialect are made of."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.tool_use import JsonObject
from gateway.served import Served
from prefixcache.types import Usage

_METHODS = ("generateContent", "streamGenerateContent", "countTokens", "createCachedContent")


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The dialect's objects have camelCase names."""


class ModalityCount(_Object, frozen=True, kw_only=True):
    """A count by kind of content: all is text."""

    modality: str = "TEXT"
    token_count: int


class UsageMetadata(_Object, frozen=True, kw_only=True):
    """Gemini's account of tokens: what was cached is part of the prompt."""

    prompt_token_count: int
    cached_content_token_count: int
    candidates_token_count: int
    total_token_count: int
    prompt_tokens_details: list[ModalityCount]
    cache_tokens_details: list[ModalityCount] | UnsetType = UNSET

    @classmethod
    def of(cls, usage: Usage) -> UsageMetadata:
        """Return `usage` as Gemini writes it."""
        cached = usage.cached_tokens
        return cls(
            prompt_token_count=usage.prompt_tokens,
            cached_content_token_count=cached,
            candidates_token_count=usage.output_tokens,
            total_token_count=usage.prompt_tokens + usage.output_tokens,
            prompt_tokens_details=text_details(usage.prompt_tokens),
            cache_tokens_details=text_details(cached) if cached else UNSET,
        )


class CallReply(_Object, frozen=True, kw_only=True):
    """A function that the model calls."""

    id: str
    name: str
    args: JsonObject


class PartReply(_Object, frozen=True, kw_only=True):
    """A part of a turn: a text or a call."""

    text: str | UnsetType = UNSET
    function_call: CallReply | UnsetType = UNSET


class ContentReply(_Object, frozen=True, kw_only=True):
    """The model's turn, or a piece of it."""

    parts: list[PartReply]
    role: str = "model"


class TokenChance(_Object, frozen=True, kw_only=True):
    """A token and the logarithm of its chance."""

    token: str
    token_id: int
    log_probability: float


class TopCandidates(_Object, frozen=True, kw_only=True):
    """The likeliest tokens of one place."""

    candidates: list[TokenChance]


class LogprobsResult(_Object, frozen=True, kw_only=True):
    """The scores of a turn, token by token."""

    chosen_candidates: list[TokenChance]
    top_candidates: list[TopCandidates]


class Candidate(_Object, frozen=True, kw_only=True):
    """One answer, or a piece of it."""

    content: ContentReply
    index: int
    finish_reason: str | UnsetType = UNSET
    avg_logprobs: float | UnsetType = UNSET
    logprobs_result: LogprobsResult | UnsetType = UNSET


class GenerateReply(_Object, frozen=True, kw_only=True):
    """A whole answer, or one item of a streamed one."""

    candidates: list[Candidate]
    usage_metadata: UsageMetadata
    model_version: str
    response_id: str


class CountReply(_Object, frozen=True, kw_only=True):
    """How many tokens a prompt has."""

    total_tokens: int
    prompt_tokens_details: list[ModalityCount]

    @classmethod
    def of(cls, n_tokens: int) -> CountReply:
        """Return the answer for a prompt of `n_tokens`."""
        return cls(total_tokens=n_tokens, prompt_tokens_details=text_details(n_tokens))


class ModelReply(_Object, frozen=True, kw_only=True):
    """What is told of a model."""

    name: str
    base_model_id: str
    version: str = "1"
    display_name: str
    input_token_limit: int
    output_token_limit: int
    supported_generation_methods: tuple[str, ...] = _METHODS
    temperature: float = 1
    max_temperature: float = 2
    top_p: float = 1

    @classmethod
    def of(cls, served: Served) -> ModelReply:
        """Return what is told of the served model, or of an adapter."""
        return cls(
            name=f"models/{served.name}",
            base_model_id=served.parent or served.name,
            display_name=served.name,
            input_token_limit=served.info.max_model_tokens,
            output_token_limit=served.info.max_model_tokens,
        )


class ModelsReply(_Object, frozen=True, kw_only=True):
    """All models: one, and its adapters."""

    models: list[ModelReply]


class CachedUsage(_Object, frozen=True, kw_only=True):
    """The length of a cached content."""

    total_token_count: int


class CachedContentReply(_Object, frozen=True, kw_only=True):
    """A cached content; what is in it is not shown again."""

    name: str
    model: str
    create_time: str
    update_time: str
    expire_time: str
    usage_metadata: CachedUsage
    display_name: str | UnsetType = UNSET


class CachedContentsReply(_Object, frozen=True, kw_only=True):
    """A page of what the tenant keeps."""

    cached_contents: list[CachedContentReply]
    next_page_token: str | UnsetType = UNSET


class Nothing(_Object, frozen=True, kw_only=True):
    """The answer where there is nothing to say."""


def text_details(n_tokens: int) -> list[ModalityCount]:
    """Return a count by kind of content."""
    return [ModalityCount(token_count=n_tokens)]
