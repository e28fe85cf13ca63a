"""A server of our own, started for a measurement and stopped after it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO, TypeVar

from gateway.client.streaming import BenchError
from gateway.settings import variable_of

READY = "ready "
_STOP_SECONDS = 60.0  # more than the server's own drain
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class OwnServer:
    """Where a server of ours answers, and its process."""

    url: str
    pid: int


@asynccontextmanager
async def own_server(
    arguments: Sequence[str],
    start_seconds: float = 600,
    *,
    usage_db: str = "off",
    log_file: IO[bytes] | None = None,
) -> AsyncIterator[OwnServer]:
    """Run `prefixcache serve --port 0` with `arguments`, and stop it in the end.

    Args:
        usage_db: where accounts are kept; if nothing is said they are not, being nobody's. What
            others have published is none of its business either way.
        log_file: where its log goes; None: to ours.

    Raises: as `started_server`.
    """
    command = ("gateway.cli", "serve", "--port", "0", "--log-level", "warning")
    flags = ("--until-stdin-ends", *arguments)
    env = {
        variable_of("server", "usage_db"): usage_db,
        variable_of("server", "prompts_db"): "off",
    }
    async with started_server(
        (*command, *flags), start_seconds, env=env, log_file=log_file
    ) as server:
        yield server


@asynccontextmanager
async def started_server(
    module: Sequence[str],
    start_seconds: float = 60,
    *,
    env: Mapping[str, str] = MappingProxyType({}),
    log_file: IO[bytes] | None = None,
) -> AsyncIterator[OwnServer]:
    """Run a module of ours that says where it is ready, and stop it in the end.

    What is measured is what was started: the address comes from the process itself. It ends with
    this process as well, however that ends: it holds a pipe from here.

    Raises:
        BenchError: it did not become ready in time.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=log_file,
        env={**os.environ, **env},
    )
    try:
        yield OwnServer(await _announced(process, start_seconds), process.pid)
    finally:
        await _stop(process)


def run_to_the_end(work: Coroutine[object, object, _T]) -> _T:
    """Run `work` in a new event loop; SIGTERM cancels it, so that it stops what it started.

    Raises:
        SystemExit: with 128 + SIGTERM, when that came and the work has ended.
    """
    try:
        return asyncio.run(_cancelled_by_sigterm(work))
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None


async def _cancelled_by_sigterm(work: Coroutine[object, object, _T]) -> _T:
    task = asyncio.ensure_future(work)

    def stop() -> None:
        if not task.cancelling():  # a second signal does not break off the stopping
            task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    return await task


async def _announced(process: asyncio.subprocess.Process, seconds: float) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            line = (await process.stdout.readline()).decode().strip()
    except TimeoutError as error:
        raise BenchError(f"the server was not ready within {seconds:g} seconds") from error
    if not line.startswith(READY):
        raise BenchError("the server ended before it was ready")
    return line.removeprefix(READY)


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
