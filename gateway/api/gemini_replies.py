"""How the Gemini dialect writes answers: whole, as events, or as the items of an array."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from gateway.api.answers import Choice
from gateway.api.choice_text import CallStart, ChoiceText, Told, arguments_of
from gateway.api.gemini_objects import (
    CallReply,
    Candidate,
    ContentReply,
    GenerateReply,
    LogprobsResult,
    PartReply,
    TokenChance,
    TopCandidates,
    UsageMetadata,
)
from prefixcache.text import TokenBytes
from prefixcache.text.tools import CallArguments, Content
from prefixcache.types import (
    Delta,
    Finished,
    FinishReason,
    PromptScores,
    Started,
    TokenScore,
    Usage,
)

_REASONS = {FinishReason.STOP: "STOP", FinishReason.LENGTH: "MAX_TOKENS"}
_LEAST = -9999.0  # for a chance of 0, which JSON has no number for


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What is known of an answer before it comes."""

    id: str
    model: str
    in_events: bool  # of a stream; else it is an array
    with_scores: bool
    tokens: TokenBytes


class _Parts:
    """Puts the parts of one candidate together; a call is told when it is complete."""

    def __init__(self, text: ChoiceText) -> None:
        self._text = text
        self._call: CallStart | None = None
        self._arguments = ""

    def push(self, text: str) -> list[PartReply]:
        """Take more text and return the parts that are complete; text always is."""
        return self._of(self._text.push(text))

    def finish(self) -> list[PartReply]:
        """Return the rest."""
        return [*self._of(self._text.finish()), *self._ended()]

    def _of(self, told: Sequence[Told]) -> list[PartReply]:
        parts: list[PartReply] = []
        for each in told:
            if isinstance(each, CallArguments):
                self._arguments += each.text
                continue
            parts += self._ended()
            if isinstance(each, Content):
                parts.append(PartReply(text=each.text))
            else:
                self._call = each
        return parts

    def _ended(self) -> list[PartReply]:
        if self._call is None:
            return []
        call, arguments = self._call, self._arguments
        self._call, self._arguments = None, ""
        told = CallReply(id=call.id, name=call.name, args=arguments_of(arguments))
        return [PartReply(function_call=told)]


class CandidateShape:
    """`:generateContent` and `:streamGenerateContent`."""

    def __init__(self, head: Head, new_text: Callable[[], ChoiceText]) -> None:
        self._head = head
        self._parts: defaultdict[int, _Parts] = defaultdict(lambda: _Parts(new_text()))
        self._started: dict[int, Started] = {}
        self._output: dict[int, int] = {}  # tokens, by candidate
        self._is_first = True

    def opening(self, index: int, started: Started) -> bytes:
        """Return an empty text, and the count of the prompt."""
        self._started[index] = started
        return self._chunk(index, [PartReply(text="")])

    def piece(self, index: int, event: PromptScores | Delta) -> bytes:
        """Return more parts, or the scores of text that is held back."""
        if isinstance(event, PromptScores):
            return b""
        self._output[index] = self._output.get(index, 0) + len(event.token_ids)
        parts = self._parts[index].push(event.text)
        scores = event.scores if self._head.with_scores else ()
        return self._chunk(index, parts, scores=scores) if parts or scores else b""

    def closing(self, index: int, finished: Finished) -> bytes:
        """Return what was held back, and why the candidate ended."""
        self._output[index] = finished.usage.output_tokens
        parts = self._parts[index].finish()
        return self._chunk(index, parts or [PartReply(text="")], reason=finished.reason)

    def ending(self, usage: Usage) -> bytes:
        """Return the end of the array; events just end."""
        return b"" if self._head.in_events else b"\r\n]"

    def whole(self, choices: list[Choice], usage: Usage) -> bytes:
        """Return the whole answer."""
        candidates = [self._whole(index, choice) for index, choice in enumerate(choices)]
        return msgspec.json.encode(self._reply(candidates, usage))

    def _whole(self, index: int, choice: Choice) -> Candidate:
        parts = self._parts[index]
        told = [*parts.push(choice.text), *parts.finish()]
        scores = choice.scores if self._head.with_scores else ()
        candidate = self._candidate(index, _joined(told), choice.reason, scores)
        if not scores:
            return candidate
        total = sum(max(score.logprob, _LEAST) for score in scores)
        return replace(candidate, avg_logprobs=total / len(scores))

    def _chunk(
        self,
        index: int,
        parts: list[PartReply],
        *,
        reason: FinishReason | None = None,
        scores: Sequence[TokenScore] = (),
    ) -> bytes:
        counted = self._started[min(self._started)]  # as in every account
        usage = Usage(counted.prompt_tokens, counted.cached_tokens, sum(self._output.values()))
        reply = self._reply([self._candidate(index, parts, reason, scores)], usage)
        encoded = msgspec.json.encode(reply)
        if self._head.in_events:
            return b"data: %b\r\n\r\n" % encoded
        before, self._is_first = b"[" if self._is_first else b",\r\n", False
        return before + encoded

    def _candidate(
        self,
        index: int,
        parts: list[PartReply],
        reason: FinishReason | None,
        scores: Sequence[TokenScore],
    ) -> Candidate:
        return Candidate(
            content=ContentReply(parts=parts),
            index=index,
            finish_reason=UNSET if reason is None else _REASONS[reason],
            logprobs_result=self._logprobs(scores) if scores else UNSET,
        )

    def _reply(self, candidates: list[Candidate], usage: Usage) -> GenerateReply:
        return GenerateReply(
            candidates=candidates,
            usage_metadata=UsageMetadata.of(usage),
            model_version=self._head.model,
            response_id=self._head.id,
        )

    def _logprobs(self, scores: Sequence[TokenScore]) -> LogprobsResult:
        return LogprobsResult(
            chosen_candidates=[self._scored(s.token_id, s.logprob) for s in scores],
            top_candidates=[
                TopCandidates(candidates=[self._scored(*top) for top in score.top])
                for score in scores
            ],
        )

    def _scored(self, token_id: int, logprob: float) -> TokenChance:
        token = self._head.tokens.of(token_id).decode(errors="replace")
        return TokenChance(token=token, token_id=token_id, log_probability=max(logprob, _LEAST))


def _joined(parts: Sequence[PartReply]) -> list[PartReply]:
    """Return parts with the texts that follow each other joined; no parts are an empty text."""
    joined: list[PartReply] = []
    for part in parts:
        before = joined[-1].text if joined else UNSET
        if isinstance(part.text, str) and isinstance(before, str):
            joined[-1] = PartReply(text=before + part.text)
        else:
            joined.append(part)
    return joined or [PartReply(text="")]
