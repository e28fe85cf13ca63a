"""The worker process: an engine behind a Unix socket.

One thread reads frames into a bounded inbox, another one sends signs of life; the main thread
steps the engine and writes what each step brought. A gateway that does not read makes the write
block, and so the engine wait. When the gateway goes away, the socket ends, and the worker with it,
while it loads too.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping

from transformers.utils.logging import disable_progress_bar

from prefixcache.engine.allocator import keep_freed_memory
from prefixcache.engine.changes import Changes
from prefixcache.engine.engine import Engine
from prefixcache.engine.heartbeat import Pulse
from prefixcache.engine.inbox import Inbox
from prefixcache.errors import AdapterError, ConfigError, EngineError, PrefixCacheError, WireError
from prefixcache.types import Event, GenerationRequest
from prefixcache.wire import (
    HEADER,
    Cancel,
    Progress,
    Ready,
    Start,
    StartFailed,
    Step,
    Stop,
    Submit,
    ToGateway,
    ToWorker,
    decode_to_worker,
    encode,
    payload_length,
)

logger = logging.getLogger(__name__)


class Connection:
    """Frames over a connected stream socket, for one reader and any number of writers."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._writing = threading.Lock()

    def send(self, message: ToGateway) -> None:
        """Write one frame; blocks while the gateway does not read."""
        with self._writing:
            self._stream.sendall(encode(message))

    def receive(self) -> ToWorker | None:
        """Return the next message, or None when the gateway has closed.

        Raises:
            WireError: malformed, too large or of another version.
        """
        header = self._exactly(HEADER.size)
        if header is None:
            return None
        payload = self._exactly(payload_length(header))
        return None if payload is None else decode_to_worker(payload)

    def _exactly(self, n_bytes: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < n_bytes:
            part = self._stream.recv(min(n_bytes - len(parts), 1 << 20))
            if not part:
                return None
            parts += part
        return bytes(parts)


class Worker:
    """Moves messages between a connection and an engine until told to stop."""

    def __init__(
        self,
        connection: Connection,
        engine: Engine,
        inbox: Inbox | None = None,
        *,
        heartbeat_seconds: float = 5.0,
    ) -> None:
        """Make it. `inbox`: what reads the connection already; None: a thread of this one will."""
        self._connection = connection
        self._engine = engine
        self._inbox = inbox or Inbox()
        self._is_read = inbox is not None
        self._changes = Changes(engine, connection.send)
        self._pulse = Pulse(connection.send, every_seconds=heartbeat_seconds)
        self._is_stopping = False

    def run(self) -> None:
        """Serve until Stop or the end of the connection."""
        if not self._is_read:
            start_reading(self._connection, self._inbox)
        with self._pulse.beating():
            while not self._is_stopping:
                self._go_on()

    def _go_on(self) -> None:
        if not self._engine.has_work:  # an idle step drops what is overdue
            self._inbox.wait(self._engine.seconds_to_next_look)
        self._apply_waiting()
        is_tidying = not self._engine.has_work
        with self._pulse.step():
            events: list[Event] = self._engine.step(poll=self._apply_waiting)
        is_tidying &= not events and self._engine.seconds_to_next_look == 0.0
        if not is_tidying:  # of many little steps, the last tells what they did
            self._connection.send(Step(tuple(events), self._engine.stats()))
        self._changes.settle()

    def _apply_waiting(self) -> None:
        self._inbox.take_into(self._apply)

    def _apply(self, message: ToWorker) -> None:
        match message:
            case Submit(request):
                self._submit(request)
            case Cancel(request_id):
                self._engine.cancel(request_id)
            case Stop():
                self._is_stopping = True
            case Start():
                logger.error("a second start message is ignored")
            case _:
                self._changes.make(message)

    def _submit(self, request: GenerationRequest) -> None:
        try:
            self._engine.submit(request)
        except EngineError as error:  # the request that has the id goes on
            logger.error("a request was dropped: %s", error)


def start_reading(
    connection: Connection, inbox: Inbox, *, at_end: Callable[[], None] = lambda: None
) -> None:
    """Have a thread read frames into `inbox`; after the last one it puts Stop, calls `at_end`."""

    def read() -> None:
        try:
            while (message := connection.receive()) is not None:
                inbox.put(message)
        except WireError as error:
            logger.error("the connection to the gateway broke: %s", error)
        except OSError as error:
            logger.info("the connection to the gateway ended: %s", error)
        inbox.put(Stop())
        at_end()

    threading.Thread(target=read, daemon=True, name="frames").start()


def serve(
    connection: Connection, env: Mapping[str, str], *, leave: Callable[[], None] = lambda: None
) -> int:
    """Load what the first message asks for and serve; return the exit status.

    A gateway that goes away, at whatever moment, is an end and not an error.

    Args:
        leave: called, from another thread, when that happens while the model is loaded: nobody
            would have any use for it.
    """
    try:
        return _serve(connection, env, leave)
    except (BrokenPipeError, ConnectionResetError):
        logger.info("the gateway is gone")
        return 0


def _serve(connection: Connection, env: Mapping[str, str], leave: Callable[[], None]) -> int:
    start = _first_message(connection)
    if not isinstance(start, Start):
        return 0 if start is None else _refuse(connection, start)
    inbox, has_loaded = Inbox(), threading.Event()
    start_reading(connection, inbox, at_end=lambda: None if has_loaded.is_set() else leave())
    try:
        engine = Engine.load(
            start.config, env=env, report=lambda line: connection.send(Progress(line))
        )
    except PrefixCacheError as error:
        has_loaded.set()
        connection.send(
            StartFailed(str(error), is_bad_input=isinstance(error, (ConfigError, AdapterError)))
        )
        return 1
    has_loaded.set()
    connection.send(Ready(engine.info))
    try:
        Worker(connection, engine, inbox, heartbeat_seconds=start.heartbeat_seconds).run()
    finally:
        engine.close()
    return 0


def _first_message(connection: Connection) -> Start | str | None:
    """Return the start message, None when the gateway has gone, a text about anything else."""
    try:
        first = connection.receive()
    except WireError as error:
        return f"the gateway's first message cannot be read: {error}"
    if first is None or isinstance(first, Start):
        return first
    return f"the gateway sent {type(first).__name__} before a start message"


def _refuse(connection: Connection, reason: str) -> int:
    logger.error("%s", reason)
    connection.send(StartFailed(reason))
    return 1


def leave_at_once() -> None:
    """End this process and those it has started, whatever they are doing."""
    if os.getpgrp() == os.getpid():  # a group of its own, as the gateway starts it
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


def main(arguments: list[str]) -> int:
    """Connect to the gateway's socket and serve it; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m prefixcache.engine.worker")
    parser.add_argument("--socket", required=True, help="the gateway's Unix socket")
    path = parser.parse_args(arguments).socket
    # A terminal's Ctrl-C and a service manager's stop reach the whole group: the gateway
    # drains first and then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep_freed_memory(os.environ)
    disable_progress_bar()  # of weights that load in a second
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect(path)
        return serve(Connection(stream), os.environ, leave=leave_at_once)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
