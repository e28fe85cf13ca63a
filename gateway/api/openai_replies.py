"""The objects that the answers of the OpenAI dialect are made of, whole and in chunks."""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.api.openai_calls import ChatDelta, ChatMessage
from gateway.api.openai_models import GenerationBody
from gateway.api.openai_scores import ChatScores, TextScores
from gateway.http import data_frame
from gateway.service import Served, Service
from prefixcache.types import FinishReason, Usage

Reason = FinishReason | Literal["tool_calls"]

_DONE = data_frame(b"[DONE]")


class CachedDetails(msgspec.Struct, frozen=True):
    """Which of the prompt's tokens were not computed for this request."""

    cached_tokens: int


class UsageReply(msgspec.Struct, frozen=True):
    """OpenAI's account of tokens; `prompt_tokens` includes the cached ones."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedDetails

    @classmethod
    def of(cls, usage: Usage) -> UsageReply:
        """Return `usage` as OpenAI writes it."""
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.output_tokens,
            total_tokens=usage.prompt_tokens + usage.output_tokens,
            prompt_tokens_details=CachedDetails(usage.cached_tokens),
        )


class ChatChoice(msgspec.Struct, frozen=True):
    """One whole answer."""

    index: int
    message: ChatMessage
    finish_reason: Reason
    logprobs: ChatScores | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One piece of one answer."""

    index: int
    delta: ChatDelta
    finish_reason: Reason | None = None
    logprobs: ChatScores | None = None


class TextChoice(msgspec.Struct, frozen=True):
    """A whole answer, or a piece of one: the two look alike in completions."""

    index: int
    text: str
    finish_reason: FinishReason | None = None
    logprobs: TextScores | None = None


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The object around choices. `usage` is left out of chunks that did not ask for it."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: None = None
    choices: list[ChatChoice] | list[ChatChunkChoice] | list[TextChoice]
    usage: UsageReply | msgspec.UnsetType | None = msgspec.UNSET


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What all objects of one answer share."""

    id: str
    created: int
    model: str
    include_usage: bool  # in a stream: whether chunks speak of usage

    @classmethod
    def of(cls, service: Service, served: Served, body: GenerationBody, *, prefix: str) -> Head:
        """Return the head of a new answer to `body`, with an id of its own after `prefix`."""
        options = body.stream_options
        return cls(
            id=f"{prefix}-{service.new_id()}",
            created=int(service.wall_clock()),
            model=served.name,
            include_usage=bool(options and options.include_usage),
        )


def no_usage(head: Head) -> msgspec.UnsetType | None:
    """Return how a chunk before the last speaks of usage: null if asked for, else not at all."""
    return None if head.include_usage else msgspec.UNSET


def write_ending(head: Head, kind: str, usage: Usage) -> bytes:
    """Return the chunk without choices, if usage was asked for, and the mark of the end."""
    if not head.include_usage:
        return _DONE
    return data_frame(write_reply(head, kind, [], UsageReply.of(usage))) + _DONE


def write_reply(
    head: Head,
    kind: str,
    choices: list[ChatChoice] | list[ChatChunkChoice] | list[TextChoice],
    usage: UsageReply | msgspec.UnsetType | None,
) -> bytes:
    """Return the object around `choices` as JSON."""
    reply = Reply(
        id=head.id,
        object=kind,
        created=head.created,
        model=head.model,
        choices=choices,
        usage=usage,
    )
    return msgspec.json.encode(reply)
