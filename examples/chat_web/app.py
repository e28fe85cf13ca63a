"""A chat with memory in a web page, which shows how much of each turn was cached.

Start a gateway, then this, and open the address that it prints:

    prefixcache serve
    python -m examples.chat_web.app --gateway http://127.0.0.1:8000

The page sends the conversation, this application puts its system prompt in front and asks the
gateway. PREFIXCACHE_KEY is a tenant's key; with PREFIXCACHE_ADMIN_KEY too (or no keys at all) the
system prompt is published, so that even a new conversation's first turn finds it cached.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
from aiohttp import web

FOLDER = Path(__file__).parent
MOST_MESSAGES = 100
SYSTEM = (
    "You are the assistant of a small bakery. Answer briefly and kindly. The bakery is open from"
    " seven to six, closed on Mondays, and bakes rye bread, rolls and apple cake. Orders are taken"
    " by telephone. If you do not know something, say so, and never make up prices."
)
GATEWAY = web.AppKey("gateway", aiohttp.ClientSession)


def make_app(gateway_url: str, key: str, admin_key: str) -> web.Application:
    """Return the application in front of the gateway at that URL."""

    async def connection(app: web.Application) -> AsyncIterator[None]:
        headers = {"Authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(gateway_url, headers=headers) as gateway:
            app[GATEWAY] = gateway
            await publish(gateway, admin_key)
            yield

    app = web.Application(client_max_size=256 * 1024)
    app.cleanup_ctx.append(connection)
    app.router.add_get("/", page)
    app.router.add_get("/page.js", script)
    app.router.add_post("/chat", chat)
    return app


async def publish(gateway: aiohttp.ClientSession, admin_key: str) -> bool:
    """Publish the system prompt, and tell whether that went well: it works without, too."""
    headers = {"Authorization": f"Bearer {admin_key}"}
    prompt = {"name": "bakery", "system": SYSTEM}
    async with gateway.post("/v1/prompts", json=prompt, headers=headers) as reply:
        return reply.ok


async def page(request: web.Request) -> web.FileResponse:
    """Answer with the page."""
    return web.FileResponse(FOLDER / "page.html")


async def script(request: web.Request) -> web.FileResponse:
    """Answer with what the page runs."""
    return web.FileResponse(FOLDER / "page.js")


async def chat(request: web.Request) -> web.Response:
    """Answer the conversation so far with the next message, and what of it was cached."""
    history = conversation(await request.json())
    body = {
        "model": await model_name(request.app[GATEWAY]),
        "messages": [{"role": "system", "content": SYSTEM}, *history],
        "max_tokens": 200,
    }
    async with request.app[GATEWAY].post("/v1/chat/completions", json=body) as reply:
        found = await reply.json()
        if not reply.ok:
            return web.json_response({"error": found["error"]["message"]}, status=reply.status)
    usage = found["usage"]
    return web.json_response(
        {
            "content": found["choices"][0]["message"]["content"],
            "prompt_tokens": usage["prompt_tokens"],
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        }
    )


def conversation(sent: object) -> list[dict[str, str]]:
    """Return the messages that a page sent: a user's and an assistant's text, nothing else."""
    if not isinstance(sent, list) or not 0 < len(sent) <= MOST_MESSAGES:
        raise web.HTTPBadRequest(text="a list of messages is needed")
    for message in sent:
        is_message = isinstance(message, dict) and message.get("role") in ("user", "assistant")
        if not is_message or not isinstance(message.get("content"), str):
            raise web.HTTPBadRequest(text="a message has a role and a content")
    return [{"role": message["role"], "content": message["content"]} for message in sent]


async def model_name(gateway: aiohttp.ClientSession) -> str:
    """Return what the gateway's model is called."""
    async with gateway.get("/v1/models", raise_for_status=True) as reply:
        return str((await reply.json())["data"][0]["id"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateway", default="http://127.0.0.1:8000")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    key = os.environ.get("PREFIXCACHE_KEY", "none")
    app = make_app(options.gateway, key, os.environ.get("PREFIXCACHE_ADMIN_KEY", "none"))
    web.run_app(app, host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
