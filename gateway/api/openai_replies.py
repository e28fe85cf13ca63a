"""The objects that the answers of the OpenAI dialect are made of, whole and in chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from gateway.api.obfuscation import obfuscated
from gateway.api.openai_calls import ChatDelta, ChatMessage
from gateway.api.openai_models import GenerationBody, StreamOptions
from gateway.api.openai_scores import ChatScores, TextScores
from gateway.http import data_frame
from gateway.served import Served
from gateway.service import Service
from prefixcache.types import FinishReason, ModelInfo, Usage

Reason = Literal["stop", "length", "tool_calls"]

_ENCODE = msgspec.json.Encoder().encode
_DONE = data_frame(b"[DONE]")
_PLACE = "content"  # stands for any; what a client can name is written before a choice


class PromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the prompt's tokens were read from the cache, and which were left there."""

    cached_tokens: int
    cache_write_tokens: int
    audio_tokens: int = 0


class CompletionDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the output's tokens were no text: none."""

    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class UsageReply(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's account of tokens; `prompt_tokens` includes the cached ones."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails = CompletionDetails()

    @classmethod
    def of(cls, usage: Usage) -> UsageReply:
        """Return `usage` as OpenAI writes it."""
        return cls(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.output_tokens,
            total_tokens=usage.prompt_tokens + usage.output_tokens,
            prompt_tokens_details=PromptDetails(
                cached_tokens=usage.cached_tokens, cache_write_tokens=usage.written_tokens
            ),
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
    system_fingerprint: str
    service_tier: str | msgspec.UnsetType = msgspec.UNSET
    metadata: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    usage: UsageReply | msgspec.UnsetType | None = msgspec.UNSET


class ChatReply(Reply, frozen=True, kw_only=True):
    """A whole chat completion."""

    object: str = "chat.completion"
    choices: list[ChatChoice]


class ChatChunk(Reply, frozen=True, kw_only=True):
    """One event of a streamed chat completion."""

    object: str = "chat.completion.chunk"
    choices: list[ChatChunkChoice]


class TextReply(Reply, frozen=True, kw_only=True):
    """A whole completion, or one event of a streamed one."""

    object: str = "text_completion"
    choices: list[TextChoice]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What all objects of one answer share."""

    id: str
    created: int
    model: str
    fingerprint: str
    service_tier: str | msgspec.UnsetType
    metadata: dict[str, str] | msgspec.UnsetType
    include_usage: bool  # in a stream: whether chunks speak of usage
    noise: Callable[[], str] | None  # in a stream: what hides the sizes of chunks

    @classmethod
    def of(cls, service: Service, served: Served, body: GenerationBody, *, prefix: str) -> Head:
        """Return the head of a new answer to `body`, with an id of its own after `prefix`."""
        options = body.stream_options or StreamOptions()
        return cls(
            id=f"{prefix}-{service.new_id()}",
            created=int(service.wall_clock()),
            model=served.name,
            fingerprint=fingerprint_of(served.info),
            service_tier=msgspec.UNSET if body.service_tier is None else "default",
            metadata=msgspec.UNSET if body.metadata is None else body.metadata,
            include_usage=bool(options.include_usage),
            noise=service.new_id if options.include_obfuscation else None,
        )


def fingerprint_of(info: ModelInfo) -> str:
    """Return what stays the same as long as equal requests can give equal answers: one load."""
    return _fingerprint(f"{info.load_id}\0{info.kv_format}\0{info.device}")


@lru_cache(maxsize=64)
def _fingerprint(said: str) -> str:
    return f"fp_{hashlib.sha256(said.encode()).hexdigest()[:10]}"


def no_usage(head: Head) -> msgspec.UnsetType | None:
    """Return how a chunk before the last speaks of usage: null if asked for, else not at all."""
    return None if head.include_usage else msgspec.UNSET


def write_chunk(
    head: Head,
    kind: type[ChatChunk] | type[TextReply],
    choice: ChatChunkChoice | TextChoice,
) -> bytes:
    """Return one piece of an answer as an event."""
    data = write_reply(head, kind, [choice], no_usage(head))
    return data_frame(data if head.noise is None else obfuscated(data, head.noise))


class ContentFrames:
    """Writes the pieces of one choice that are content alone: nothing else differs in them."""

    def __init__(self, head: Head, index: int) -> None:
        """Write for a choice of an answer whose chunks have no noise."""
        assert head.noise is None
        sample = write_chunk(head, ChatChunk, ChatChunkChoice(index, ChatDelta(content=_PLACE)))
        before, place, self._after = sample.rpartition(msgspec.json.encode(_PLACE))
        assert place
        self._before = before

    def write(self, content: str) -> bytes:
        """Return the same as `write_chunk`."""
        return b"".join((self._before, _ENCODE(content), self._after))


def write_ending(head: Head, kind: type[ChatChunk] | type[TextReply], usage: Usage) -> bytes:
    """Return the chunk without choices, if usage was asked for, and the mark of the end."""
    if not head.include_usage:
        return _DONE
    return data_frame(write_reply(head, kind, [], UsageReply.of(usage))) + _DONE


def write_reply(
    head: Head,
    kind: type[ChatReply] | type[ChatChunk] | type[TextReply],
    choices: Sequence[ChatChoice | ChatChunkChoice | TextChoice],
    usage: UsageReply | msgspec.UnsetType | None,
) -> bytes:
    """Return the object around `choices`, which are those of its kind, as JSON."""
    reply = kind(
        id=head.id,
        created=head.created,
        model=head.model,
        system_fingerprint=head.fingerprint,
        service_tier=head.service_tier,
        metadata=head.metadata,
        choices=choices,  # type: ignore[arg-type]  # one kind has one kind of choices
        usage=usage,
    )
    return msgspec.json.encode(reply)
