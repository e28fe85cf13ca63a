"""The routes that machines watch: /health, /ready and /metrics."""

from __future__ import annotations

import msgspec
from aiohttp import hdrs, web

from gateway.http import SERVICE, json_response
from gateway.metrics import CONTENT_TYPE
from gateway.routes import READ_ERRORS, Route
from prefixcache import __version__

DIALECT = "operations"


class Status(msgspec.Struct, frozen=True):
    """How the server is."""

    status: str


class Health(Status, frozen=True):
    """That the server is there, and which one it is."""

    version: str


async def show_health(request: web.Request) -> web.Response:
    """Answer 200 and the version: the process lives, whatever the model does."""
    return json_response(msgspec.json.encode(Health("alive", __version__)))


async def show_readiness(request: web.Request) -> web.Response:
    """Answer 200 while requests are taken, else the 503 that they would get."""
    request.app[SERVICE].served()
    return json_response(msgspec.json.encode(Status("ready")))


async def show_metrics(request: web.Request) -> web.Response:
    """Answer with the metrics in Prometheus's text format."""
    exposition = request.app[SERVICE].metrics.exposition()
    return web.Response(body=exposition, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE})


OPERATIONS_ROUTES = (
    Route(
        method=hdrs.METH_GET,
        path="/health",
        handler=show_health,
        summary="Tell that the process lives.",
        dialect=DIALECT,
        answer=Health,
        errors=(),
    ),
    Route(
        method=hdrs.METH_GET,
        path="/ready",
        handler=show_readiness,
        summary="Tell whether requests are taken now.",
        dialect=DIALECT,
        answer=Status,
        errors=(*READ_ERRORS, 503),
    ),
    Route(
        method=hdrs.METH_GET,
        path="/metrics",
        handler=show_metrics,
        summary="Give the metrics in Prometheus's text format.",
        dialect=DIALECT,
    ),
)
