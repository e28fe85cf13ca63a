"""The worker process: an engine behind a Unix socket.

One thread reads frames into a queue; the main thread steps the engine and writes what each
step brought. A gateway that does not read makes the write block, and so the engine wait.
When the gateway goes away, the socket ends, and the worker with it.
"""

from __future__ import annotations

import argparse
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress

from transformers.utils.logging import disable_progress_bar

from prefixcache.engine.engine import Engine
from prefixcache.errors import ConfigError, EngineError, PrefixCacheError, WireError
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
    """Frames over a connected stream socket; one reader and one writer at a time."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def send(self, message: ToGateway) -> None:
        """Write one frame; blocks while the gateway does not read."""
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

    def __init__(self, connection: Connection, engine: Engine) -> None:
        self._connection = connection
        self._engine = engine
        self._inbox: queue.SimpleQueue[ToWorker] = queue.SimpleQueue()
        self._is_stopping = False

    def run(self) -> None:
        """Serve until Stop or the end of the connection."""
        threading.Thread(target=self._read, daemon=True, name="frames").start()
        while not self._is_stopping:
            if not self._engine.has_work:
                with suppress(queue.Empty):  # then the step drops what is overdue
                    self._apply(self._inbox.get(timeout=self._engine.seconds_to_next_look))
            self._apply_waiting()
            events: list[Event] = self._engine.step(poll=self._apply_waiting)
            self._connection.send(Step(tuple(events), self._engine.stats()))

    def _read(self) -> None:
        """Put every frame into the inbox; the last one is Stop."""
        try:
            while (message := self._connection.receive()) is not None:
                self._inbox.put(message)
        except (WireError, OSError) as error:
            if not self._is_stopping:  # then it is our own end that was closed
                logger.error("the connection to the gateway broke: %s", error)
        self._inbox.put(Stop())

    def _apply_waiting(self) -> None:
        while not self._inbox.empty():
            self._apply(self._inbox.get())

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

    def _submit(self, request: GenerationRequest) -> None:
        try:
            self._engine.submit(request)
        except EngineError as error:  # the request that has the id goes on
            logger.error("a request was dropped: %s", error)


def serve(connection: Connection, env: Mapping[str, str]) -> int:
    """Load what the first message asks for and serve; return the exit status.

    A gateway that goes away, at whatever moment, is an end and not an error.
    """
    try:
        return _serve(connection, env)
    except (BrokenPipeError, ConnectionResetError):
        logger.info("the gateway is gone")
        return 0
    except WireError as error:
        logger.error("the gateway's first message cannot be read: %s", error)
        return 1


def _serve(connection: Connection, env: Mapping[str, str]) -> int:
    first = connection.receive()
    if not isinstance(first, Start):
        logger.error("the gateway sent %s before a start message", type(first).__name__)
        return 1
    try:
        engine = Engine.load(
            first.config, env=env, report=lambda line: connection.send(Progress(line))
        )
    except PrefixCacheError as error:
        connection.send(StartFailed(str(error), is_bad_input=isinstance(error, ConfigError)))
        return 1
    connection.send(Ready(engine.info))
    Worker(connection, engine).run()
    return 0


def main(arguments: list[str]) -> int:
    """Connect to the gateway's socket and serve it; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m prefixcache.engine.worker")
    parser.add_argument("--socket", required=True, help="the gateway's Unix socket")
    path = parser.parse_args(arguments).socket
    # A terminal's Ctrl-C and a service manager's stop reach the whole group: the gateway
    # drains first and then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    disable_progress_bar()  # of weights that load in a second
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect(path)
        return serve(Connection(stream), os.environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
