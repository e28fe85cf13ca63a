"""Load at little cost: fixed requests on kept connections, each sent again when it is answered.

An HTTP client of the usual kind costs more than the servers that it is to measure, so this one
reads no more of an answer than its status, its first byte and its end.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.client.streaming import BenchError

_HEAD_END = b"\r\n\r\n"
_CHUNKS_END = b"\r\n0\r\n\r\n"
_LENGTH = b"content-length:"
_IN_CHUNKS = b"transfer-encoding: chunked"


@dataclass(frozen=True, slots=True)
class Load:
    """What a server did under a load."""

    seconds: float  # that it lasted
    durations: tuple[float, ...]  # of whole answers, in seconds, sorted

    @property
    def per_second(self) -> float:
        """The whole answers in a second."""
        return len(self.durations) / self.seconds


def quantile(ordered: Sequence[float], part: float) -> float:
    """Return the smallest of some sorted values that `part` of them do not exceed."""
    return ordered[max(math.ceil(part * len(ordered)) - 1, 0)]


def request_bytes(url: str, path: str, body: bytes, *, key: str | None) -> bytes:
    """Return a whole POST of JSON to a server, as official clients send one; GET without a body."""
    lines = [
        f"{'POST' if body else 'GET'} {path} HTTP/1.1",
        f"Host: {urlsplit(url).netloc}",
        "Accept: application/json",
        "User-Agent: prefixcache-bench",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *([] if key is None else [f"Authorization: Bearer {key}"]),
    ]
    return "\r\n".join(lines).encode() + _HEAD_END + body


class Exchange(asyncio.Protocol):
    """One kept connection, which carries one request at a time."""

    def __init__(self) -> None:
        self.first_byte_at = 0.0
        self.last_byte_at = 0.0
        self.longest_gap_seconds = 0.0  # between two parts of an answer
        self.answer: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] | None = None
        self._began: asyncio.Future[None] | None = None
        self._left: int | None = None  # bytes of a body of known length; None: it comes in chunks
        self._tail = b""

    @classmethod
    async def open(cls, url: str) -> Exchange:
        """Return a connection to the server at `url`. Raises OSError, and BenchError: no host."""
        parts = urlsplit(url)
        if parts.hostname is None:
            raise BenchError(f"{url} names no host; write http://HOST:PORT")
        loop = asyncio.get_running_loop()
        _, exchange = await loop.create_connection(cls, parts.hostname, parts.port or 80)
        return exchange

    async def ask(self, request: bytes) -> bytes:
        """Send a request and return the whole answer, head and framing included.

        Raises:
            BenchError: it has another status than 200, or broke off.
        """
        await self.begin(request)
        assert self._ended is not None  # `begin` has set it
        await self._ended
        return b"".join(self.answer)

    async def begin(self, request: bytes) -> None:
        """Send a request and return when its answer begins. Raises BenchError."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self.answer.clear()
        self._began, self._ended = loop.create_future(), loop.create_future()
        self._transport.write(request)
        await self._began

    def close(self) -> None:
        """Close the connection, in the middle of an answer or not."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self.answer.append(data)
        now = time.perf_counter()
        if self._began is not None and not self._began.done():
            self.first_byte_at = now
            self._take_head(data)
        elif self._left is not None:
            self._left -= len(data)
        else:
            self._tail = (self._tail + data)[-len(_CHUNKS_END) :]
        self._note_gap(now)
        if self._left == 0 or (self._left is None and self._tail == _CHUNKS_END):
            self._settle(None)

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._settle(BenchError("a server closed its connection"))

    def _take_head(self, data: bytes) -> None:
        head, mark, rest = data.partition(_HEAD_END)
        if not mark or b" 200 " not in head[:16]:
            self._settle(BenchError(f"a server answered {data[:300].decode(errors='replace')!r}"))
            return
        named = head.lower()
        self._tail = rest[-len(_CHUNKS_END) :]
        self._left = None if _IN_CHUNKS in named else _length_in(named) - len(rest)
        assert self._began is not None
        self._began.set_result(None)

    def _note_gap(self, now: float) -> None:
        if self.last_byte_at >= self.first_byte_at:
            gap_seconds = now - self.last_byte_at
            self.longest_gap_seconds = max(self.longest_gap_seconds, gap_seconds)
        self.last_byte_at = now

    def _settle(self, error: BenchError | None) -> None:
        for waiter in (self._began, self._ended):
            if waiter is not None and not waiter.done():
                if error is None:
                    waiter.set_result(None)
                elif not waiter.cancelled():
                    waiter.set_exception(error)
                    waiter.exception()  # it may be that nobody waits
        self._left = None


def parts_of(answer: bytes) -> list[bytes]:
    """Return the parts of an answer's body as they were written, each a chunk; or it whole."""
    head, _, rest = answer.partition(_HEAD_END)
    if _IN_CHUNKS not in head.lower():
        return [rest]
    parts: list[bytes] = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size, 16):
            return parts
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]


async def load(url: str, request: bytes, *, at_once: int, seconds: float) -> Load:
    """Keep `at_once` requests running for `seconds`, and wait for those that run then.

    All count, and the time until the last has ended: streams of one length end together, and a
    time that ends just before them would leave out one of a few rounds.

    Raises:
        BenchError: `url` names no host, or an answer was refused or broke off.
    """
    exchanges = await asyncio.gather(*(Exchange.open(url) for _ in range(at_once)))
    answers: list[tuple[float, float]] = []  # when each ended, and what it took
    began = time.perf_counter()

    async def keep_asking(exchange: Exchange) -> None:
        now = began
        while now - began < seconds:
            sent_at = time.perf_counter()
            await exchange.ask(request)
            now = time.perf_counter()
            answers.append((now - began, now - sent_at))

    spinning = asyncio.create_task(_spin())
    try:
        async with asyncio.TaskGroup() as group:
            for exchange in exchanges:
                group.create_task(keep_asking(exchange))
    except* BenchError as errors:
        raise errors.exceptions[0] from errors
    finally:
        spinning.cancel()
        for exchange in exchanges:
            exchange.close()
    return Load(max(answers)[0], tuple(sorted(took for _, took in answers)))


async def _spin() -> None:
    """Keep the loop from sleeping: to wake it would be work for the server, by how idle it is."""
    while True:  # noqa: ASYNC110 (it waits for nothing)
        await asyncio.sleep(0)


def _length_in(head: bytes) -> int:
    _, found, rest = head.partition(_LENGTH)
    if not found:
        raise BenchError("a server's answer has neither a length nor chunks")
    return int(rest.partition(b"\r\n")[0])
