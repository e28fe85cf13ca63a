"""The events of one request on their way from the worker's socket to one reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from prefixcache.types import (
    Delta,
    Event,
    Failed,
    FailureKind,
    Finished,
    PromptScores,
    RequestId,
    TokenScore,
)

_EVENT_BYTES = 96  # what an event weighs beside its text and token ids
_TOKEN_BYTES = 8
_SCORE_BYTES = 100  # a token id and a number in tuples, one for each token of a place


class EventStream:
    """A queue of events that is bounded in bytes and never blocks the side that fills it.

    One task reads. When more than `limit_bytes` wait, the queue refuses what follows and ends
    with a Failed event: what was taken in is still read in order, nothing is lost from its middle.
    """

    def __init__(self, request_id: RequestId, *, limit_bytes: int) -> None:
        self._request_id = request_id
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[Event, int]] = deque()  # with what each weighs
        self._waiting_bytes = 0
        self._changed = asyncio.Event()
        self._is_ended = False

    @property
    def is_ended(self) -> bool:
        """Whether the last event has been put in; it may not have been read yet."""
        return self._is_ended

    @property
    def is_drained(self) -> bool:
        """Whether the last event has been read."""
        return self._is_ended and not self._waiting

    def put(self, event: Event) -> bool:
        """Queue `event`; return False when the reader is too far behind and the stream ended.

        After the end nothing is taken in.
        """
        if self._is_ended:
            return True
        weight = _weight(event)
        is_output = isinstance(event, Delta | PromptScores)
        if is_output and self._waiting_bytes + weight > self._limit_bytes:
            self.fail(
                FailureKind.CANCELLED,
                f"more than {self._limit_bytes} bytes of output wait for a client that does"
                " not read them",
            )
            return False
        self._append(event, weight)
        return True

    def fail(self, kind: FailureKind, message: str) -> None:
        """End the stream with a Failed event, unless it has ended."""
        if not self._is_ended:
            failed = Failed(request_id=self._request_id, kind=kind, message=message)
            self._append(failed, _weight(failed))

    async def get(self) -> Event:
        """Return the next event, waiting for it."""
        while not self._waiting:
            self._changed.clear()
            await self._changed.wait()
        event, weight = self._waiting.popleft()
        self._waiting_bytes -= weight
        return event

    def _append(self, event: Event, weight: int) -> None:
        self._waiting.append((event, weight))
        self._waiting_bytes += weight
        self._is_ended = isinstance(event, (Finished, Failed))
        self._changed.set()


def _weight(event: Event) -> int:
    """Return about how many bytes `event` holds."""
    if isinstance(event, PromptScores):
        return _EVENT_BYTES + _scores_weight(event.scores)
    if not isinstance(event, Delta):
        return _EVENT_BYTES
    output_bytes = len(event.text.encode()) + _TOKEN_BYTES * len(event.token_ids)
    return _EVENT_BYTES + output_bytes + _scores_weight(event.scores)


def _scores_weight(scores: Sequence[TokenScore]) -> int:
    return _SCORE_BYTES * sum(1 + len(score.top) for score in scores)
