"""The plainest handler that answers as a gateway does: the measure of a gateway's own cost.

    python -m gateway.client.plain_server ANSWERS.json [PORT]

It reads a request's body, looks into it for nothing but "stream", and sends what it was given.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
import msgspec
from aiohttp import web

from gateway.client.own_server import READY
from gateway.server import StopSignals

STREAMED = b'"stream":true'  # how a body asks for a stream here
PATH = "/v1/chat/completions"


class Answers(msgspec.Struct, frozen=True):
    """What to send."""

    whole: bytes
    events: tuple[bytes, ...]  # each is written by itself, as soon as it comes
    seconds_per_event: float = 0.0  # 0: the next comes at the event loop's next turn


def make_plain_app(answers: Answers) -> web.Application:
    """Return an application that sends `answers` to whatever is posted."""

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if STREAMED not in body:
            return web.Response(body=answers.whole, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in answers.events:
            await response.write(event)
            await asyncio.sleep(answers.seconds_per_event)
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_post(PATH, handle)
    return app


async def run(answers: Answers, port: int) -> None:
    """Serve until told to stop or standard input ends; port 0 is any free one."""
    signals = StopSignals()
    signals.listen()
    signals.follow(sys.stdin.fileno())
    runner = web.AppRunner(make_plain_app(answers), access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=1024, shutdown_timeout=1.0)
    await site.start()
    host, port = runner.addresses[0][:2]
    click.echo(f"{READY}http://{host}:{port}")
    await signals.first.wait()
    await runner.cleanup()


if __name__ == "__main__":
    given = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Answers)
    asyncio.run(run(given, int(sys.argv[2]) if len(sys.argv) > 2 else 0))
