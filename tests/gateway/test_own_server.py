"""A server that was started for a measurement ends with whoever has started it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.tokenizers import write_piece_tokenizer
from tests.support.waiting import until

PARENT = """
import asyncio, sys
from gateway.client.own_server import own_server

async def run():
    async with own_server(["--backend", "echo", "--model", sys.argv[1]]) as server:
        print(server.url, flush=True)
        await asyncio.sleep(600)

asyncio.run(run())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_no_server_outlives_the_process_that_started_it(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Whatever kills the parent, its server drains and goes."""
    write_piece_tokenizer(tmp_path, [b"one"])
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    assert (await parent.stdout.readline()).startswith(b"http://")
    children = psutil.Process(parent.pid).children(recursive=True)
    assert children
    os.kill(parent.pid, number)
    await parent.wait()
    await until(lambda: not any(child.is_running() for child in children))
