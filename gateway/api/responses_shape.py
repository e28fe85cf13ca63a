"""How `/v1/responses` writes an answer, whole and as events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from gateway.api.answers import Choice
from gateway.api.choice_text import ChoiceText
from gateway.api.obfuscation import obfuscated
from gateway.api.openai_scores import ChatToken, chat_scores
from gateway.api.responses_events import (
    DELTAS,
    Completed,
    Created,
    Incomplete,
    InProgress,
    ResponseEvent,
    ResponseFailed,
)
from gateway.api.responses_output import Output
from gateway.api.responses_replies import (
    CacheDiagnostics,
    IncompleteDetails,
    Response,
    ResponseError,
    ResponseStatus,
    ResponseUsage,
)
from gateway.http import event_frame
from gateway.verdicts import shown_message, verdict
from prefixcache.text import TokenBytes
from prefixcache.types import (
    Delta,
    Finished,
    FinishReason,
    PromptScores,
    Retain,
    Started,
    TokenScore,
    Usage,
)


class ResponseShape:
    """`/v1/responses`: one answer, whose text becomes items."""

    def __init__(
        self,
        begun: Response,
        text: ChoiceText,
        tokens: TokenBytes,
        *,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        keep: Callable[[Response], None],
        diagnose: Callable[[Usage], CacheDiagnostics] | None = None,
        retain: Sequence[Retain] = (),
        with_scores: bool = False,
        is_silent: bool = False,
        is_padded: bool = False,
    ) -> None:
        """Write an answer.

        Args:
            begun: the response before anything was said.
            text: takes the answer's text apart.
            tokens: what token ids stand for.
            new_id: gives fresh ids.
            clock: seconds since the epoch.
            keep: is given the response when it is over, before the client is.
            diagnose: compares its prompt with another one's, where that is asked for.
            retain: what stays in the cache for longer.
            with_scores: the client wants logarithms of chances.
            is_silent: nothing is to be said, so there will be no item.
            is_padded: the sizes of deltas are to tell nothing.
        """
        self._response = begun
        self._text = text
        self._tokens = tokens
        self._new_id = new_id
        self._clock = clock
        self._keep = keep
        self._diagnose = diagnose
        self._retain = tuple(retain)
        self._with_scores = with_scores
        self._is_silent = is_silent
        self._is_padded = is_padded
        self._n_events = 0
        self._output = Output(lambda prefix: f"{prefix}_{new_id()}", self._number)
        self._reason = FinishReason.STOP

    def opening(self, index: int, started: Started) -> bytes:
        """Return the two events that begin a stream."""
        created = Created(sequence_number=self._number(), response=self._response)
        working = InProgress(sequence_number=self._number(), response=self._response)
        return self._frames((created, working))

    def piece(self, index: int, event: PromptScores | Delta) -> bytes:
        """Return what a delta adds to an item, or begins."""
        if isinstance(event, PromptScores):
            return b""
        told = self._text.push(event.text)
        return self._frames(self._output.push(told, self._scores(event.scores)))

    def closing(self, index: int, finished: Finished) -> bytes:
        """Return what was held back, and the end of the last item."""
        return self._frames(self._finished(finished.reason))

    def ending(self, usage: Usage) -> bytes:
        """Return the event with the whole response."""
        response = self._ended(usage)
        kind = Completed if response.status == "completed" else Incomplete
        return self._frames((kind(sequence_number=self._number(), response=response),))

    def failing(self, error: BaseException) -> bytes:
        """Return the event that tells of trouble in mid-stream, with what was whole until then."""
        is_busy = verdict(error).status == 429
        code = "rate_limit_exceeded" if is_busy else "server_error"
        failed = replace(
            self._response,
            status="failed",
            error=ResponseError(code=code, message=shown_message(error)),
            output=list(self._output.items),
        )
        return self._frames((ResponseFailed(sequence_number=self._number(), response=failed),))

    def whole(self, choices: list[Choice], usage: Usage) -> bytes:
        """Return the whole response."""
        (choice,) = choices
        for _ in self._output.push(self._text.push(choice.text), self._scores(choice.scores)):
            pass  # the items are kept, and nobody waits for events
        for _ in self._finished(choice.reason):
            pass
        return msgspec.json.encode(self._ended(usage))

    def _finished(self, reason: FinishReason) -> Iterator[ResponseEvent]:
        self._reason = reason
        yield from self._output.push(self._text.finish(), ())
        if not self._is_silent:
            cut = reason is FinishReason.LENGTH
            yield from self._output.finish("incomplete" if cut else "completed")

    def _ended(self, usage: Usage) -> Response:
        is_cut = self._reason is FinishReason.LENGTH and not self._is_silent
        status: ResponseStatus = "incomplete" if is_cut else "completed"
        response = replace(
            self._response,
            status=status,
            completed_at=None if is_cut else int(self._clock()),
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
            output=list(self._output.items),
            prompt_cache_diagnostics=self._diagnose(usage) if self._diagnose else None,
            usage=ResponseUsage.of(usage, self._retain),
        )
        self._keep(response)
        return response

    def _scores(self, scores: Sequence[TokenScore]) -> list[ChatToken]:
        return chat_scores(scores, self._tokens).content if self._with_scores else []

    def _number(self) -> int:
        self._n_events += 1
        return self._n_events - 1

    def _frames(self, events: Iterable[ResponseEvent]) -> bytes:
        return b"".join(map(self._frame, events))

    def _frame(self, event: ResponseEvent) -> bytes:
        data = msgspec.json.encode(event)
        if self._is_padded and isinstance(event, DELTAS):
            data = obfuscated(data, self._new_id)
        return event_frame(str(event.__struct_config__.tag), data)
