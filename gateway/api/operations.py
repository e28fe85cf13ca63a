"""The routes that machines watch: /health, /ready and /metrics."""

from __future__ import annotations

import msgspec
from aiohttp import hdrs, web

from gateway.http import SERVICE, json_response
from gateway.metrics import CONTENT_TYPE
from prefixcache import __version__

_HEALTH = msgspec.json.encode({"status": "alive", "version": __version__})


async def show_health(request: web.Request) -> web.Response:
    """Answer 200 and the version: the process lives, whatever the model does."""
    return json_response(_HEALTH)


async def show_readiness(request: web.Request) -> web.Response:
    """Answer 200 while requests are taken, else the 503 that they would get."""
    request.app[SERVICE].served()
    return json_response(b'{"status":"ready"}')


async def show_metrics(request: web.Request) -> web.Response:
    """Answer with the metrics in Prometheus's text format."""
    exposition = request.app[SERVICE].metrics.exposition()
    return web.Response(body=exposition, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE})


def add_operations_routes(router: web.UrlDispatcher) -> None:
    """Add the three routes."""
    router.add_get("/health", show_health)
    router.add_get("/ready", show_readiness)
    router.add_get("/metrics", show_metrics)
