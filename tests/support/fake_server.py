"""Servers that say what a test wrote for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web

Routes = Mapping[str, object]  # path -> what a GET answers, as JSON
_LISTEN = """
import socket, sys
host = sys.argv[1]
family = socket.AF_INET6 if ":" in host else socket.AF_INET
bound = socket.create_server((host, int(sys.argv[2])), family=family)
print(bound.getsockname()[1], flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def fake_server(
    routes: Routes, completion: bytes = b"", status: int = 200
) -> AsyncIterator[str]:
    """Answer GETs as `routes` say and every completion with the bytes `completion`."""

    async def complete(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        await response.write(completion)
        return response

    async def show(request: web.Request) -> web.Response:
        return web.json_response(routes[request.path])

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    for path in routes:
        app.router.add_get(path, show)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextmanager
def listening_process(host: str, port: int = 0) -> Iterator[tuple[int, int | None]]:
    """Run a process that listens and answers nothing; give its id and port, None if it cannot."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LISTEN, host, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield process.pid, int(line) if line else None
    finally:
        process.kill()
        process.communicate()
