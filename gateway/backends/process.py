"""One life of a worker process: its start, the frames to and from it, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gateway.errors import BadModelError, StartError
from prefixcache import wire
from prefixcache.config import EngineConfig
from prefixcache.errors import WireError
from prefixcache.types import GenerationRequest, ModelInfo, RequestId

_STANDARD_ERROR = 2  # the worker's standard output goes there too: ours is for the ready line

Report = wire.Step | wire.Heartbeat | wire.Answer
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class WorkerProcess:
    """A worker that has loaded its model.

    It runs in a process group of its own, so that a Ctrl-C at the terminal reaches the gateway
    alone, which then drains.
    """

    def __init__(self, process: Process, streams: Streams, model: ModelInfo) -> None:
        self._process = process
        self._reader, self._writer = streams
        self.model = model

    @property
    def exit_code(self) -> int | None:
        """The process's exit code (negative: the signal that ended it), None while it runs."""
        return self._process.returncode

    async def submit(self, request: GenerationRequest) -> None:
        """Send `request`, waiting while the worker does not read.

        A connection that breaks meanwhile is not an error here: `messages` ends, and whoever
        reads it tells every request.
        """
        self._writer.write(wire.encode(wire.Submit(request)))
        with suppress(ConnectionError):
            await self._writer.drain()

    def change(self, change: wire.Change) -> None:
        """Ask the worker for a change; the answer is among `messages`."""
        self._writer.write(wire.encode(change))

    def cancel(self, request_id: RequestId) -> None:
        """Tell the worker to end a request; unknown and finished ones are ignored there."""
        self._writer.write(wire.encode(wire.Cancel(request_id)))

    async def messages(self) -> AsyncIterator[Report]:
        """Give what the worker reports until its side of the connection ends.

        Raises:
            WireError: it sent what cannot be read, or what has no place here.
        """
        while (message := await _receive(self._reader)) is not None:
            if not isinstance(message, Report):
                raise WireError(f"the worker sent {type(message).__name__} while serving")
            yield message

    def kill(self) -> None:
        """End the worker now, whatever it does; `messages` ends then."""
        _kill(self._process)

    async def end(self, *, grace_seconds: float) -> None:
        """Ask the worker to stop, kill it when it has not after `grace_seconds`, and reap it.

        May be called again, also after a cancelled call.
        """
        if not self._writer.is_closing():
            self._writer.write(wire.encode(wire.Stop()))
        try:
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()
        except TimeoutError:
            _kill(self._process)
            await self._process.wait()
        self._writer.close()


async def launch_worker(
    config: EngineConfig,
    command: Sequence[str],
    *,
    silence_seconds: float,
    heartbeat_seconds: float,
    report: Callable[[str], None],
) -> WorkerProcess:
    """Start `command`, have it load the model of `config`, and return it ready to serve.

    Args:
        silence_seconds: how long it may take to connect, and then to say anything.
        heartbeat_seconds: how often it is to say that it lives, once it serves.
        report: called with each line of progress.

    Raises:
        StartError: it cannot be started, ends, fails, falls silent or speaks another version.
            Then no process is left, nor is one when this call is cancelled.
    """
    connected: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()
    with tempfile.TemporaryDirectory(prefix="prefixcache-") as folder:  # private: 0700
        path = Path(folder) / "worker.sock"
        server = await _listen(path, connected)
        try:
            process = await _spawn([*command, "--socket", str(path)])
            start = wire.Start(config, heartbeat_seconds)
            return await _prepare(process, connected, start, silence_seconds, report)
        finally:
            server.close()


async def _prepare(
    process: Process,
    connected: asyncio.Future[Streams],
    start: wire.Start,
    silence_seconds: float,
    report: Callable[[str], None],
) -> WorkerProcess:
    """Bring a spawned worker to the point where it serves; leave nothing of it on any error."""
    try:
        streams = await _first_connection(connected, process, silence_seconds)
        model = await _load(streams, start, process, silence_seconds, report)
    except BaseException as error:
        await _discard(process, connected)
        if isinstance(error, (WireError, TimeoutError)):
            raise StartError(_start_failure(error, silence_seconds)) from error
        raise
    return WorkerProcess(process, streams, model)


async def _listen(path: Path, connected: asyncio.Future[Streams]) -> asyncio.Server:
    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if connected.done():
            writer.close()
        else:
            connected.set_result((reader, writer))

    try:
        return await asyncio.start_unix_server(accept, path)
    except OSError as error:
        raise StartError(f"cannot make a socket for the worker at {path}: {error}") from error


async def _spawn(command: Sequence[str]) -> Process:
    try:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=_STANDARD_ERROR,
            start_new_session=True,
        )
    except OSError as error:
        raise StartError(f"cannot start the worker ({command[0]}): {error}") from error


async def _first_connection(
    connected: asyncio.Future[Streams], process: Process, timeout_seconds: float
) -> Streams:
    """Wait until the worker connects; TimeoutError when it does not, StartError when it ends."""
    ended = asyncio.create_task(process.wait())
    try:
        await asyncio.wait(
            (connected, ended), timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if connected.done():
            return connected.result()
        if ended.done():
            raise StartError(f"the worker ended with exit code {process.returncode} as it started")
        raise TimeoutError
    finally:
        ended.cancel()


async def _load(
    streams: Streams,
    start: wire.Start,
    process: Process,
    silence_seconds: float,
    report: Callable[[str], None],
) -> ModelInfo:
    """Have the worker load its model, passing on its progress."""
    reader, writer = streams
    writer.write(wire.encode(start))
    while True:
        async with asyncio.timeout(silence_seconds):
            message = await _receive(reader)
        match message:
            case wire.Progress(text):
                report(text)
            case wire.Ready(model):
                return model
            case wire.StartFailed(text, is_bad_input):
                raise BadModelError(text) if is_bad_input else StartError(text)
            case None:
                code = await process.wait()
                raise StartError(f"the worker ended with exit code {code} as it loaded the model")
            case _:
                raise WireError("the worker reported a step before it was ready")


async def _receive(reader: asyncio.StreamReader) -> wire.ToGateway | None:
    """Return the next message, None when the connection has ended (even within a frame)."""
    try:
        header = await reader.readexactly(wire.HEADER.size)
        payload = await reader.readexactly(wire.payload_length(header))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return wire.decode_to_gateway(payload)


def _start_failure(error: WireError | TimeoutError, silence_seconds: float) -> str:
    if isinstance(error, WireError):
        return f"the worker cannot be understood: {error}"
    return f"the worker said nothing for {silence_seconds:g} seconds as it started"


def _kill(process: Process) -> None:
    """End the worker's whole process group, if its leader is still there to be named."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


async def _discard(process: Process, connected: asyncio.Future[Streams]) -> None:
    """Kill and reap a worker that did not come to serve, and close its connection."""
    _kill(process)
    await process.wait()
    if connected.done() and not connected.cancelled():
        connected.result()[1].close()
