"""How a message is written, whole and as events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gateway.api.answers import Choice
from gateway.api.anthropic_caching import Kept, UsageReply
from gateway.api.anthropic_replies import (
    Diagnostics,
    MessageReply,
    ReplyBlock,
    TextBlock,
    ToolUseBlock,
    blocks_of,
    event,
    tool_id,
)
from gateway.api.choice_text import CallStart, ChoiceText, Told
from prefixcache.text.tools import CallArguments, Content
from prefixcache.types import Delta, Finished, FinishReason, PromptScores, Started, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What is known of an answer before it comes."""

    id: str
    model: str
    kept: Kept
    is_cut: bool  # fewer tokens fit than were asked for
    diagnose: Callable[[int], Diagnostics | None] | None  # from the cached tokens; None: unasked


class MessageShape:
    """`/v1/messages`: one choice, in blocks."""

    def __init__(self, head: Head, text: ChoiceText) -> None:
        self._head = head
        self._text = text
        self._n_blocks = 0
        self._open: ReplyBlock | None = None  # the block that is being told
        self._reason: str | None = None
        self._stop: str | None = None

    def opening(self, index: int, started: Started) -> bytes:
        """Return the message without its content, with the real count of its input."""
        read = started.cached_tokens
        expected = self._head.kept.expected(started.prompt_tokens, read)
        message = self._message([], read, expected)
        return event("message_start", message=message) + event("ping")

    def piece(self, index: int, event: PromptScores | Delta) -> bytes:
        """Return more of a block, or of several."""
        if isinstance(event, PromptScores):
            return b""
        return b"".join(map(self._told, self._text.push(event.text)))

    def closing(self, index: int, finished: Finished) -> bytes:
        """Return what was held back and the end of the last block."""
        rest = b"".join(map(self._told, self._text.finish()))
        self._end(finished.reason, finished.stop)
        return rest + self._close()

    def ending(self, usage: Usage) -> bytes:
        """Return why it stopped, all usage, and the mark of the end."""
        counted = self._head.kept.usage(usage)
        delta = {"stop_reason": self._reason, "stop_sequence": self._stop}
        return event("message_delta", delta=delta, usage=counted) + event("message_stop")

    def whole(self, choices: list[Choice], usage: Usage) -> bytes:
        """Return the whole message."""
        (choice,) = choices
        told = [*self._text.push(choice.text), *self._text.finish()]
        self._end(choice.reason, choice.stop)
        counted = self._head.kept.usage(usage)
        return msgspec.json.encode(self._message(blocks_of(told), usage.cached_tokens, counted))

    def _message(
        self, content: list[ReplyBlock], cached_tokens: int, usage: UsageReply
    ) -> MessageReply:
        head = self._head
        return MessageReply(
            id=head.id,
            model=head.model,
            content=content,
            stop_reason=self._reason,
            stop_sequence=self._stop,
            diagnostics=head.diagnose(cached_tokens) if head.diagnose else msgspec.UNSET,
            usage=usage,
        )

    def _end(self, reason: FinishReason, stop: str | None) -> None:
        """Take note of why the answer ended; a stop string goes before calls."""
        self._stop = stop
        if reason is FinishReason.LENGTH:
            cut = "model_context_window_exceeded"
            self._reason = cut if self._head.is_cut else "max_tokens"
        elif stop is not None:
            self._reason = "stop_sequence"
        else:
            self._reason = "tool_use" if self._text.has_calls else "end_turn"

    def _told(self, told: Told) -> bytes:
        match told:
            case Content(text=text):
                begin = b"" if isinstance(self._open, TextBlock) else self._begin(TextBlock(""))
                return begin + self._delta({"type": "text_delta", "text": text})
            case CallStart():
                return self._begin(ToolUseBlock(tool_id(told.id), told.name, {}))
            case CallArguments(text=text):
                return self._delta({"type": "input_json_delta", "partial_json": text})

    def _begin(self, block: ReplyBlock) -> bytes:
        before = self._close()
        self._open = block
        return before + event("content_block_start", index=self._n_blocks, content_block=block)

    def _delta(self, delta: dict[str, str]) -> bytes:
        return event("content_block_delta", index=self._n_blocks, delta=delta)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        self._n_blocks += 1
        return event("content_block_stop", index=self._n_blocks - 1)
