"""Threads for what takes a request's time around its run: decoding, templates, tokenizing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gateway.errors import OverloadedError

_T = TypeVar("_T")


class EncodePool:
    """A few threads and a bounded queue in front of them.

    Used from one event loop. Work that waits is dropped when whoever asked for it is cancelled;
    work that has begun goes on to its end, for a thread cannot be interrupted.
    """

    def __init__(self, *, n_threads: int, max_waiting: int) -> None:
        self._threads = ThreadPoolExecutor(n_threads, thread_name_prefix="encode")
        self._max_waiting = max_waiting
        self._max_asked = n_threads + max_waiting
        self._n_asked = 0  # at work or waiting

    async def run(self, work: Callable[[], _T]) -> _T:
        """Return what `work` returns, called in a thread.

        Raises:
            OverloadedError: `max_waiting` others wait already. Nothing was done.
        """
        if self._n_asked >= self._max_asked:
            raise OverloadedError(self._max_waiting)
        self._n_asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._n_asked -= 1

    async def settle(self, work: Callable[[], None]) -> None:
        """Call `work`, which ends a request that was let in, in a thread: it is never refused."""
        await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Drop what waits, and do not wait for what is at work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
