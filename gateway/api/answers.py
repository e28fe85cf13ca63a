"""From a call's events to an HTTP answer, streamed or whole, in the shape a dialect wants."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from aiohttp import web

from gateway.envelopes import envelope_for
from gateway.errors import SlowClientError
from gateway.http import SERVICE, EventSink, json_response, record_of
from gateway.merge import NumberedEvent
from gateway.served import Call
from gateway.verdicts import is_expected, verdict
from prefixcache.types import (
    Delta,
    Event,
    Finished,
    FinishReason,
    PromptScores,
    Started,
    TokenScore,
    Usage,
)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Choice:
    """One whole answer, as it is being collected."""

    pieces: list[str] = field(default_factory=list)
    prompt_scores: list[TokenScore] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    reason: FinishReason = FinishReason.STOP
    stop: str | None = None  # the stop string that ended it

    @property
    def text(self) -> str:
        """The answer's text."""
        return "".join(self.pieces)

    def take(self, event: Event) -> None:
        """Add what `event` brings."""
        match event:
            case Delta():  # first, because it is the most frequent
                self.pieces.append(event.text)
                self.scores += event.scores
            case PromptScores(scores=scores):
                self.prompt_scores += scores
            case Finished():
                self.reason, self.stop = event.reason, event.stop
            case _:
                pass


class ReplyShape(Protocol):
    """How one endpoint writes an answer.

    The caller promises, per choice, `opening`, then any number of `piece`, then `closing`; and
    `ending` after all choices. Or, unstreamed, `whole` alone. The shape promises that all but
    `whole` return whole events for the stream, or nothing where there is nothing to say.
    """

    def opening(self, index: int, started: Started) -> bytes:
        """Return what begins a choice."""

    def piece(self, index: int, event: PromptScores | Delta) -> bytes:
        """Return more of a choice: text, scores or both."""

    def closing(self, index: int, finished: Finished) -> bytes:
        """Return what ends a choice."""

    def ending(self, usage: Usage) -> bytes:
        """Return what ends the stream."""

    def whole(self, choices: list[Choice], usage: Usage) -> bytes:
        """Return the whole answer as one JSON object."""


@runtime_checkable
class TellsFailure(Protocol):
    """A shape whose stream tells of trouble in a way of its own, not by the dialect's envelope."""

    def failing(self, error: BaseException) -> bytes:
        """Return what ends the stream when `error` ends the answer."""


async def answer(
    request: web.Request, call: Call, shape: ReplyShape, *, stream_type: str | None
) -> web.StreamResponse:
    """Run `call` and answer `request` with what comes, in a stream of that type or at once.

    Trouble before the first event is raised, and answered with a status of its own; later in a
    stream it is sent as an event, and the connection is closed.
    """
    service, record = request.app[SERVICE], record_of(request)
    ledger = call.ledger()
    call = service.admitted(call, record.admission, ledger)
    record.ledger = ledger
    async with service.run(call, ledger) as events:
        if stream_type is not None:
            return await _streamed(EventSink(request, stream_type), request, events, shape)
        choices = await _collected(events, len(call.requests))
        if any(choice.scores or choice.prompt_scores for choice in choices):  # may be many
            return json_response(await asyncio.to_thread(shape.whole, choices, ledger.usage()))
        return json_response(shape.whole(choices, ledger.usage()))


async def _collected(events: AsyncIterator[NumberedEvent], n_choices: int) -> list[Choice]:
    choices = [Choice() for _ in range(n_choices)]
    async for index, event in events:
        choices[index].take(event)
    return choices


async def _streamed(
    sink: EventSink,
    request: web.Request,
    events: AsyncIterator[NumberedEvent],
    shape: ReplyShape,
) -> web.StreamResponse:
    record = record_of(request)
    ending = b""
    first = await anext(events)  # before the headers: a refusal still has its own status
    await sink.open()
    try:
        if frame := _frame(shape, *first):
            await sink.send(frame)
        async for index, event in events:
            if frame := _frame(shape, index, event):
                await sink.send(frame)
        assert record.ledger is not None  # `answer` has set it
        ending = shape.ending(record.ledger.usage())
    except (ConnectionError, SlowClientError):
        raise
    except Exception as error:  # the last edge where the client can still be told
        if not is_expected(error):
            _log.exception("request %s failed in its stream", record.request_id)
        record.error_code = verdict(error).code
        sink.response.force_close()
        if isinstance(shape, TellsFailure):
            await sink.send(shape.failing(error))
        else:
            await sink.send(envelope_for(request).event(error, record.request_id))
    await sink.close(ending)
    return sink.response


def _frame(shape: ReplyShape, index: int, event: Event) -> bytes:
    """Return what the client is told of `event`; text that is still held back is nothing."""
    match event:
        case Delta():  # first, because it is the most frequent
            return shape.piece(index, event) if event.text or event.scores else b""
        case Started():
            return shape.opening(index, event)
        case PromptScores():
            return shape.piece(index, event)
        case Finished():
            return shape.closing(index, event)
        case _:
            return b""
