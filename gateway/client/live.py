"""A trace, sent to a server: at the trace's times, or so many requests at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import hdrs

from gateway.client.identity import Identity
from gateway.client.live_prompts import LivePrompt
from gateway.client.streaming import BenchError, Clock, Streamed, stream_completion
from prefixcache.traces import TraceRequest

_LONGEST_REASON = 200
_CONNECT_SECONDS = 30.0

MakePrompt = Callable[[TraceRequest, int], LivePrompt]


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back for a request. Moments are in seconds from the first request's."""

    sent_at: float
    ended_at: float
    first_token_seconds: float
    inter_token_seconds: float | None  # on average; None: all came at once
    prompt_tokens: int
    cached_tokens: int | None  # None: the server does not say
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request that was sent and is over: answered, or failed for a reason."""

    number: int  # among the requests of the trace that were to be sent, from 0
    late_seconds: float  # after the trace's moment; 0 where that does not count
    answered: Answered | None
    reason: str | None = None


@asynccontextmanager
async def live_session(
    key: str | None, request_seconds: float
) -> AsyncIterator[aiohttp.ClientSession]:
    """Give connections without a limit to their number.

    Args:
        key: of the server, sent with each request; None: it needs none.
        request_seconds: a request that takes longer has failed.
    """
    headers = {} if key is None else {hdrs.AUTHORIZATION: f"Bearer {key}"}
    timeout = aiohttp.ClientTimeout(total=request_seconds, connect=_CONNECT_SECONDS)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # some drop connections that idle
    async with aiohttp.ClientSession(
        headers=headers, timeout=timeout, connector=connector
    ) as session:
        yield session


class LiveRun:
    """Sends requests and collects what comes of them; what fails is counted and ends nothing.

    Args:
        at_a_time: so many requests at a time, each as soon as another one ends; None: each at
            its time, however many are open.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        identity: Identity,
        make_prompt: MakePrompt,
        *,
        at_a_time: int | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._session = session
        self._url = url
        self._identity = identity
        self._make_prompt = make_prompt
        self._at_a_time = at_a_time
        self._clock = clock
        self._began = clock()
        self.outcomes: list[Outcome] = []  # in the order of their ends
        self.n_sent = 0
        self.is_interrupted = False
        self.seconds = 0.0  # from the first request to the last end

    async def run(self, requests: Sequence[TraceRequest]) -> None:
        """Send all; when this is cancelled, what is open is given up and `is_interrupted` set."""
        self._began = self._clock()
        try:
            async with asyncio.TaskGroup() as group:
                if self._at_a_time is None:
                    await self._on_time(requests, group)
                else:
                    rest = iter(enumerate(requests))
                    for _ in range(self._at_a_time):
                        group.create_task(self._one_by_one(rest))
        except asyncio.CancelledError:
            self.is_interrupted = True
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        self.seconds = self._now()

    async def _on_time(self, requests: Sequence[TraceRequest], group: asyncio.TaskGroup) -> None:
        for number, request in enumerate(requests):
            await asyncio.sleep(max(request.timestamp_seconds - self._now(), 0))
            group.create_task(self._send(number, request, request.timestamp_seconds))

    async def _one_by_one(self, rest: Iterator[tuple[int, TraceRequest]]) -> None:
        for number, request in rest:
            await self._send(number, request, None)

    async def _send(self, number: int, request: TraceRequest, due_at: float | None) -> None:
        prompt = self._make_prompt(request, number)
        body = self._body(prompt.fields, max(request.output_tokens, 1))
        self.n_sent += 1
        late = 0.0 if due_at is None else max(self._now() - due_at, 0)
        try:
            streamed = await stream_completion(
                self._session,
                self._url,
                body,
                route=prompt.route,
                needs_text=False,
                clock=self._now,
            )
            _check(streamed, prompt.expected_tokens)
        except BenchError as error:
            reason = " ".join(str(error).split())[:_LONGEST_REASON]
            self.outcomes.append(Outcome(number, late, None, reason))
        else:
            self.outcomes.append(Outcome(number, late, _answered(streamed)))

    def _body(self, fields: Mapping[str, object], max_tokens: int) -> dict[str, object]:
        identity = self._identity
        asked = {"model": identity.model, "max_tokens": max_tokens, "temperature": 0}
        return {**asked, **identity.kind.extra, **fields}

    def _now(self) -> float:
        return self._clock() - self._began


def _check(streamed: Streamed, expected_tokens: int | None) -> None:
    if expected_tokens is not None and streamed.prompt_tokens != expected_tokens:
        raise BenchError(
            f"the server counts {streamed.prompt_tokens} prompt tokens in what was made to be"
            f" {expected_tokens}"
        )


def _answered(streamed: Streamed) -> Answered:
    first, last = streamed.arrivals[0], streamed.arrivals[-1]
    between = None
    if streamed.completion_tokens > 1 and last > first:
        between = (last - first) / (streamed.completion_tokens - 1)
    return Answered(
        sent_at=streamed.sent_at,
        ended_at=streamed.ended_at,
        first_token_seconds=streamed.first_token_seconds,
        inter_token_seconds=between,
        prompt_tokens=streamed.prompt_tokens,
        cached_tokens=streamed.cached_tokens,
        completion_tokens=streamed.completion_tokens,
    )
