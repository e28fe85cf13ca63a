"""What requests came, for replays: salted digests in a file, and text only where that is asked."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from threading import BoundedSemaphore
from typing import BinaryIO

import msgspec

from gateway.ledger import Ledger
from prefixcache.errors import ConfigError
from prefixcache.index import unpack
from prefixcache.traces import TraceWriter
from prefixcache.types import GenerationRequest, Usage

_log = logging.getLogger(__name__)
_KEY_BYTES = 32
_SALT_BYTES = 8
_OWNERS_ALONE = 0o600
_MOST_WAITING = 1000  # calls whose prompts are kept until they are written

Decode = Callable[[list[int]], str]


class _TextRow(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the file with text, as `prefixcache replay` reads it."""

    timestamp: float
    tenant: str
    model: str
    output_length: int
    messages: list[dict[str, str]]


class Recording:
    """A file that a line is added to for each request. Used from one event loop.

    A thread of its own writes the lines, in the order in which the requests ended: a prompt's
    digests take as long as the prompt is. Each file has a key of its own, which is nowhere else
    and is forgotten with the process: nobody can tell what an id stands for. Requests that do
    not both read and store are left out: what they find says nothing of a cache.
    """

    def __init__(self, path: Path, *, most_bytes: int, with_text: bool, block_tokens: int) -> None:
        """Open `path`, to go on with where it exists.

        Args:
            most_bytes: a file that has more is renamed to FILE.1, in the place of an older one.
            with_text: write what was asked, too, to FILE.text.jsonl.

        Raises:
            ConfigError: it cannot be written.
        """
        self._path, self._most_bytes = path, most_bytes
        self._text_path = path.with_name(f"{path.name}.text.jsonl") if with_text else None
        self._block_tokens = block_tokens
        self._files: list[BinaryIO] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="recording")
        self._waiting = BoundedSemaphore(_MOST_WAITING)
        self._is_open = True
        try:
            self._open()
        except OSError as error:
            reason = f"cannot be written: {error.strerror}"
            raise ConfigError("record_file", str(path), reason) from error

    def take(
        self,
        requests: tuple[GenerationRequest, ...],
        ledger: Ledger,
        *,
        arrived: float,
        model: str,
        decode: Decode,
    ) -> None:
        """Record those of a call's requests that were admitted. Trouble with the file ends it all.

        Args:
            arrived: seconds since the epoch.
            model: the model's name, of requests without an adapter.
            decode: turns token ids to text.
        """
        ended = [
            (request, usage)
            for request, usage in zip(requests, ledger.each(), strict=True)
            if usage is not None and request.read_cache and request.store_cache
        ]
        if not ended or not self._is_open:
            return
        if not self._waiting.acquire(blocking=False):
            _log.error("a request is not recorded: %s is not written fast enough", self._path)
            return
        self._thread.submit(self._add, ended, arrived, model, decode)

    async def close(self) -> None:
        """Take no more, write what waits and close the files. Asked again, it does nothing."""
        self._is_open = False
        await asyncio.to_thread(self._thread.shutdown)
        self._end()

    def _add(
        self,
        ended: Sequence[tuple[GenerationRequest, Usage]],
        arrived: float,
        model: str,
        decode: Decode,
    ) -> None:
        """Write the lines of a call. In the thread."""
        self._waiting.release()
        if not self._files:
            return
        try:
            for request, usage in ended:
                self._write(request, usage, arrived, request.adapter or model, decode)
            for file in self._files:
                file.flush()
            if self._files[0].tell() > self._most_bytes:
                self._rotate()
        except OSError as error:
            _log.error("requests are recorded no more: %s: %s", self._path, error.strerror)
            self._is_open = False
            self._end()
        except Exception:  # a thread's edge: nobody looks at what it returns
            _log.exception("a request is not recorded")

    def _end(self) -> None:
        files, self._files = self._files, []
        for file in files:
            with suppress(OSError):  # what it still held cannot be written either
                file.close()

    def _open(self) -> None:
        self._key = os.urandom(_KEY_BYTES)
        self._files = [_appending(self._path)]
        self._writer = TraceWriter(self._files[0], key=self._key, block_tokens=self._block_tokens)
        self._files[0].flush()
        if self._text_path is not None:
            self._files.append(_appending(self._text_path))

    def _rotate(self) -> None:
        self._end()
        for path in (self._path, self._text_path):
            if path is not None:
                path.replace(path.with_name(f"{path.name}.1"))
        self._open()

    def _write(
        self, request: GenerationRequest, usage: Usage, arrived: float, model: str, decode: Decode
    ) -> None:
        self._writer.write(
            timestamp_seconds=arrived,
            tenant=request.tenant,
            model=model + self._salted(request.salt),
            prompt=request.token_ids,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
        )
        if self._text_path is not None:
            row = _TextRow(
                timestamp=arrived,
                tenant=request.tenant,
                model=model,
                output_length=usage.output_tokens,
                messages=[{"role": "user", "content": decode(unpack(request.token_ids))}],
            )
            self._files[1].write(msgspec.json.encode(row) + b"\n")

    def _salted(self, salt: str | None) -> str:
        """Return what keeps prompts with different salts apart, as the cache does."""
        if salt is None:
            return ""
        digest = blake2b(
            salt.encode(errors="surrogatepass"), key=self._key, digest_size=_SALT_BYTES
        )
        return f" salted {digest.hexdigest()}"


def _appending(path: Path) -> BinaryIO:
    """Open a file to add to, which its owner alone can read if it is new."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _OWNERS_ALONE)
    return os.fdopen(handle, "ab")
