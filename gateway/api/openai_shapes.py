"""How the two kinds of OpenAI completion write an answer, whole and in chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.api.answers import Choice
from gateway.api.choice_text import ChoiceText
from gateway.api.openai_calls import ChatDelta, delta_of, message_of
from gateway.api.openai_replies import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatReply,
    ContentFrames,
    Head,
    Reason,
    TextChoice,
    TextReply,
    UsageReply,
    write_chunk,
    write_ending,
    write_reply,
)
from gateway.api.openai_scores import ChatScores, TextScores, chat_scores, text_scores
from prefixcache.text import TokenBytes
from prefixcache.types import (
    Delta,
    Finished,
    FinishReason,
    PromptScores,
    Started,
    TokenScore,
    Usage,
)


class ChatShape:
    """`/v1/chat/completions`."""

    def __init__(
        self,
        head: Head,
        tokens: TokenBytes,
        *,
        with_scores: bool,
        new_text: Callable[[], ChoiceText],
    ) -> None:
        """Write answers; `new_text` makes what takes the text of one choice apart."""
        self._head = head
        self._tokens = tokens
        self._with_scores = with_scores
        self._texts: defaultdict[int, ChoiceText] = defaultdict(new_text)
        self._contents: dict[int, ContentFrames] = {}  # of choices whose text is content alone

    def opening(self, index: int, started: Started) -> bytes:
        """Return the chunk that tells the role."""
        if self._head.noise is None and self._texts[index].is_content:
            self._contents[index] = ContentFrames(self._head, index)
        return self._chunk(ChatChunkChoice(index, ChatDelta("assistant", "")))

    def piece(self, index: int, event: PromptScores | Delta) -> bytes:
        """Return chunks with more text or calls, or the scores of text that is held back."""
        if isinstance(event, PromptScores):
            return b""
        if event.text and not event.scores and (contents := self._contents.get(index)):
            return contents.write(event.text)
        deltas = [delta_of(told) for told in self._texts[index].push(event.text)]
        scores = self._scores(event.scores)
        if not deltas and event.scores:
            deltas = [ChatDelta(content="")]
        return b"".join(
            self._chunk(ChatChunkChoice(index, delta, logprobs=scores if place == 0 else None))
            for place, delta in enumerate(deltas)
        )

    def closing(self, index: int, finished: Finished) -> bytes:
        """Return what was held back, and the chunk that ends a choice: no delta, the reason."""
        text = self._texts[index]
        held = [ChatChunkChoice(index, delta_of(told)) for told in text.finish()]
        last = ChatChunkChoice(index, ChatDelta(), _reason(text, finished.reason))
        return b"".join(map(self._chunk, [*held, last]))

    def ending(self, usage: Usage) -> bytes:
        """Return the chunk without choices, if usage was asked for, and the mark of the end."""
        return write_ending(self._head, ChatChunk, usage)

    def whole(self, choices: list[Choice], usage: Usage) -> bytes:
        """Return the whole answer."""
        written = [self._whole(index, choice) for index, choice in enumerate(choices)]
        return write_reply(self._head, ChatReply, written, UsageReply.of(usage))

    def _whole(self, index: int, choice: Choice) -> ChatChoice:
        text = self._texts[index]
        message = message_of([*text.push(choice.text), *text.finish()])
        reason, scores = _reason(text, choice.reason), self._scores(choice.scores)
        return ChatChoice(index, message, reason, scores)

    def _scores(self, scores: Sequence[TokenScore]) -> ChatScores | None:
        return chat_scores(scores, self._tokens) if self._with_scores else None

    def _chunk(self, choice: ChatChunkChoice) -> bytes:
        return write_chunk(self._head, ChatChunk, choice)


def _reason(text: ChoiceText, reason: FinishReason) -> Reason:
    if reason is FinishReason.LENGTH:
        return "length"
    return "tool_calls" if text.has_calls else "stop"


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is said again before its answer."""

    text: str
    first_token: int


class TextShape:
    """`/v1/completions`."""

    def __init__(
        self, head: Head, tokens: TokenBytes, *, with_scores: bool, echoes: Sequence[Echo] | None
    ) -> None:
        """Write answers; `echoes` has the prompt of each choice where it is to be repeated."""
        self._head = head
        self._tokens = tokens
        self._with_scores = with_scores
        self._echoes = echoes
        self._written: dict[int, int] = {}  # characters of each choice's scored tokens

    def opening(self, index: int, started: Started) -> bytes:
        """Return the prompt where it is repeated: there is no role to tell."""
        if self._echoes is None:
            return b""
        scores = self._scored(index, (), self._echoes[index].first_token)
        return self._chunk(TextChoice(index, self._echoes[index].text, logprobs=scores))

    def piece(self, index: int, event: PromptScores | Delta) -> bytes:
        """Return a chunk with more text, or with scores of a text that was told before."""
        text = event.text if isinstance(event, Delta) else ""
        return self._chunk(TextChoice(index, text, logprobs=self._scored(index, event.scores)))

    def closing(self, index: int, finished: Finished) -> bytes:
        """Return the chunk that ends a choice: no text and the reason."""
        return self._chunk(TextChoice(index, "", finished.reason))

    def ending(self, usage: Usage) -> bytes:
        """Return the chunk without choices, if usage was asked for, and the mark of the end."""
        return write_ending(self._head, TextReply, usage)

    def whole(self, choices: list[Choice], usage: Usage) -> bytes:
        """Return the whole answer."""
        written = [self._whole(index, choice) for index, choice in enumerate(choices)]
        return write_reply(self._head, TextReply, written, UsageReply.of(usage))

    def _whole(self, index: int, choice: Choice) -> TextChoice:
        echo = None if self._echoes is None else self._echoes[index]
        first = None if echo is None else echo.first_token
        scores = self._scored(index, [*choice.prompt_scores, *choice.scores], first)
        text = choice.text if echo is None else echo.text + choice.text
        return TextChoice(index, text, choice.reason, scores)

    def _scored(
        self, index: int, scores: Sequence[TokenScore], first: int | None = None
    ) -> TextScores | None:
        """Return the next scores of a choice; their offsets go on where the last ones ended."""
        if not self._with_scores:
            return None
        start = self._written.get(index, 0)
        found = text_scores(scores, self._tokens, start=start, first=first)
        self._written[index] = start + sum(map(len, found.tokens))
        return found

    def _chunk(self, choice: TextChoice) -> bytes:
        return write_chunk(self._head, TextReply, choice)
