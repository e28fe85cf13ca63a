"""What the gateway has sent and the worker has not yet looked at."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from prefixcache.wire import Publish, SetQuotas, Submit, ToWorker

INBOX_BYTES = 8 * 2**20
_MESSAGE_BYTES = 256  # what a message weighs beside what clients can make long
_NUMBER_BYTES = 32  # a token id, alone or with a bias
_QUIET_SECONDS = 0.02  # so long without a frame, and what was sent has been read
_LONGEST_TAKE_SECONDS = 0.25


class Inbox:
    """Messages between a thread that reads frames and the loop that steps the engine.

    It is bounded in bytes: when it is full, nothing more is read from the socket, and so the
    gateway is pushed back. Whoever takes from a full inbox goes on until the frames that were held
    up behind it are there too, a cancel among them.
    """

    def __init__(self, *, limit_bytes: int = INBOX_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._messages: deque[ToWorker] = deque()
        self._n_bytes = 0
        self._was_full = False
        self._changed = threading.Condition()

    @property
    def n_bytes(self) -> int:
        """About how much memory the messages take."""
        return self._n_bytes

    def put(self, message: ToWorker) -> None:
        """Add a message, waiting while there is no room. A single one of any size has room."""
        weight = _weight(message)
        with self._changed:
            if self._messages and self._n_bytes + weight > self._limit_bytes:
                self._was_full = True
                self._changed.wait_for(
                    lambda: not self._messages or self._n_bytes + weight <= self._limit_bytes
                )
            self._messages.append(message)
            self._n_bytes += weight
            self._changed.notify_all()

    def wait(self, seconds: float | None) -> None:
        """Return when there is a message, or after `seconds`; None: however long that takes."""
        with self._changed:
            self._changed.wait_for(lambda: self._messages, timeout=seconds)

    def take_into(self, apply: Callable[[ToWorker], None]) -> None:
        """Hand what there is to `apply`, in order, without waiting unless the inbox was full."""
        end = time.monotonic() + _LONGEST_TAKE_SECONDS
        was_full = False
        while True:
            with self._changed:
                messages, self._messages, self._n_bytes = self._messages, deque(), 0
                was_full, self._was_full = was_full or self._was_full, False
                self._changed.notify_all()
            for message in messages:
                apply(message)
            if not messages or not was_full or time.monotonic() > end:
                return
            self.wait(_QUIET_SECONDS)


def _weight(message: ToWorker) -> int:
    if isinstance(message, Publish):
        tenants = message.publication.tenants or ()
        return _MESSAGE_BYTES + len(message.publication.token_ids) + _NUMBER_BYTES * len(tenants)
    if isinstance(message, SetQuotas):
        return _MESSAGE_BYTES * (1 + len(message.quotas))
    if not isinstance(message, Submit):
        return _MESSAGE_BYTES
    sampling = message.request.sampling
    n_numbers = len(sampling.logit_bias) + len(sampling.stop_token_ids)
    texts = (*sampling.stop, "" if sampling.grammar is None else sampling.grammar.text)
    return (
        _MESSAGE_BYTES
        + len(message.request.token_ids)
        + _NUMBER_BYTES * n_numbers
        + sum(map(len, texts))
    )
