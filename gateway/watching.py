"""What is noted of a call's events between the backend and the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from gateway.errors import GenerationFailedError
from gateway.ledger import Ledger
from gateway.merge import NumberedEvent
from gateway.metrics import Pace
from gateway.own_answers import Recorder
from prefixcache.types import Delta, Event, Failed, FailureKind

Aside = Callable[[Callable[[], None]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Watch:
    """Keeps the accounts of one call. Used from one event loop."""

    ledger: Ledger
    pace: Pace
    recorder: Recorder | None  # remembers the answers, to know them again
    grammar_param: str | None  # the field that says what the answers must follow
    aside: Aside  # runs in a thread what would keep the event loop for long

    def output(self, index: int, delta: Delta) -> None:
        """Note what request `index` has said: once for every token, so it cannot wait."""
        self.ledger.add_output(index, delta)
        if self.recorder is not None:
            self.recorder.add(index, delta)
        if delta.token_ids:
            now = self.pace.observe(index)
            if self.ledger.first_token_at is None:
                self.ledger.first_token_at = now

    async def turn(self, index: int, event: Event) -> None:
        """Note any other event; an answer that ends is remembered before anybody is told.

        Raises:
            GenerationFailedError: the request failed.
        """
        self.ledger.observe(index, event)
        if isinstance(event, Failed):
            param = self.grammar_param if event.kind is FailureKind.GRAMMAR else None
            raise GenerationFailedError(event.kind, event.message, param)
        if self.recorder is not None and (work := self.recorder.ending(index, event)) is not None:
            if work.is_long:
                await self.aside(work.run)
            else:
                work.run()


async def watched_one(
    events: AsyncIterator[Event], watch: Watch
) -> AsyncGenerator[NumberedEvent, None]:
    """Pass the events of a call's only request on, noted; a Failed becomes an exception."""
    async for event in events:
        if isinstance(event, Delta):
            watch.output(0, event)
        else:
            await watch.turn(0, event)
        yield 0, event


async def watched(
    events: AsyncIterator[NumberedEvent], watch: Watch
) -> AsyncGenerator[NumberedEvent, None]:
    """Do the same for a call of several requests."""
    async for numbered in events:
        index, event = numbered
        if isinstance(event, Delta):
            watch.output(index, event)
        else:
            await watch.turn(index, event)
        yield numbered
