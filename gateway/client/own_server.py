"""A server of our own, started for a measurement and stopped after it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.client.streaming import BenchError

READY = "ready "


@asynccontextmanager
async def own_server(arguments: Sequence[str], start_seconds: float = 600) -> AsyncIterator[str]:
    """Run `prefixcache serve --port 0` with `arguments`; give its URL, and stop it in the end.

    What is measured is what was started: the address comes from the process itself. It ends with
    this process as well, however that ends: it holds a pipe from here.

    Raises:
        BenchError: it did not become ready in time.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "gateway.cli", "serve", "--port", "0", "--log-level", "warning"),
        *("--until-stdin-ends", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(start_seconds):
            assert process.stdout is not None
            line = (await process.stdout.readline()).decode().strip()
        if not line.startswith(READY):
            raise BenchError("the server ended before it was ready")
        yield line.removeprefix(READY)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
