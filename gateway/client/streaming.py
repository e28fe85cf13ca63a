"""One streamed answer, timed from the client's side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp
import msgspec

from gateway.errors import GatewayError

Clock = Callable[[], float]
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
_ENDS = ("stop", "length", "tool_calls")  # what may end an answer in good order
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")  # how lines of an event stream begin


class BenchError(GatewayError):
    """A server that is measured gave no usable answer; the text says what it gave."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """One whole answer. Moments are in seconds of one clock; tokens are the server's own counts."""

    sent_at: float
    arrivals: tuple[float, ...]  # of every event that brought text, or else of the end
    ended_at: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None  # None: the server does not say

    @property
    def first_token_seconds(self) -> float:
        """From sending the request to the first text."""
        return self.arrivals[0] - self.sent_at

    @property
    def tokens_per_second(self) -> float:
        """The rate after the first event, which is taken for one token.

        Raises:
            BenchError: all text came at once, so there is no rate.
        """
        seconds = self.arrivals[-1] - self.arrivals[0]
        if seconds <= 0:
            raise BenchError(f"{self.completion_tokens} tokens came in one event: no rate to take")
        return (self.completion_tokens - 1) / seconds

    def tokens_after(self, moment: float) -> float:
        """Return the tokens that came after `moment`, each event holding an equal share."""
        late = sum(arrival > moment for arrival in self.arrivals)
        return late * self.completion_tokens / len(self.arrivals)


async def stream_completion(
    session: aiohttp.ClientSession,
    url: str,
    body: Mapping[str, object],
    *,
    route: str = COMPLETIONS,
    needs_text: bool = True,
    clock: Clock = time.perf_counter,
) -> Streamed:
    """Post `body` to one of the server's routes as a stream and read the answer to its end.

    Args:
        route: `COMPLETIONS` or `CHAT`.
        needs_text: whether an answer of tokens that show no text is an error; else its end
            counts as the first text.

    Raises:
        BenchError: no connection, another status than 200, an error in the stream, a stream
            that broke off, or an answer without usage, or without text where that is needed.
    """
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    answer = _Answer(url, clock, needs_text=needs_text)
    try:
        async with session.post(url + route, json=asked) as response:
            if response.status != 200:
                raise BenchError(f"{url} answered {response.status}: {await response.text()}")
            async for line in response.content:
                answer.take(line.strip())
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise BenchError(f"{url} broke off: {type(error).__name__} {error}") from error
    return answer.whole()


class _Answer:
    """Takes a stream's lines as they come."""

    def __init__(self, url: str, clock: Clock, *, needs_text: bool) -> None:
        self._url = url
        self._clock = clock
        self._needs_text = needs_text
        self._sent_at = clock()
        self._arrivals: list[float] = []
        self._usage: dict[str, object] = {}
        self._end: object = None

    def take(self, line: bytes) -> None:
        """Take one line. Raises BenchError when it is or holds an error."""
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data != b"[DONE]":
                self._take_event(msgspec.json.decode(data))
        elif line == b"event: error" or (line and not line.startswith(_FIELDS)):
            raise self._fault(f"sent an error: {line.decode(errors='replace')}")

    def whole(self) -> Streamed:
        """Return the answer, when all lines are taken. Raises BenchError where parts miss."""
        if self._end not in _ENDS:
            raise self._fault(f"ended a stream with finish_reason {self._end!r}")
        if not self._usage or (self._needs_text and not self._arrivals):
            raise self._fault("sent no text or no usage")
        ended_at = self._clock()
        return Streamed(
            sent_at=self._sent_at,
            arrivals=tuple(self._arrivals) or (ended_at,),
            ended_at=ended_at,
            prompt_tokens=self._count("prompt_tokens"),
            completion_tokens=self._count("completion_tokens"),
            cached_tokens=self._cached(),
        )

    def _take_event(self, event: object) -> None:
        if not isinstance(event, dict) or "error" in event:
            raise self._fault(f"sent an error: {event}")
        for choice in event.get("choices") or ():
            if choice.get("text") or _says_something(choice.get("delta")):
                self._arrivals.append(self._clock())
            self._end = choice.get("finish_reason") or self._end
        self._usage = event.get("usage") or self._usage

    def _count(self, name: str) -> int:
        found = self._usage.get(name)
        if not isinstance(found, int) or found < 1:
            raise self._fault(f"sent {name} = {found!r}")
        return found

    def _cached(self) -> int | None:
        details = self._usage.get("prompt_tokens_details")
        found = details.get("cached_tokens") if isinstance(details, dict) else None
        return found if isinstance(found, int) else None

    def _fault(self, what: str) -> BenchError:
        return BenchError(f"{self._url} {what}")


def _says_something(delta: object) -> bool:
    """Whether a part of a chat's answer has text, thoughts or calls of tools."""
    if not isinstance(delta, dict):
        return False
    return any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls"))
