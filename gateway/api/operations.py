"""The routes that machines watch: /health, /ready and /metrics."""

from __future__ import annotations

import msgspec
from aiohttp import hdrs, web

from gateway.http import SERVICE, reply
from gateway.metrics import CONTENT_TYPE
from gateway.routes import READ_ERRORS, Route, in_dialect
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
    return reply(Health("alive", __version__))


async def show_readiness(request: web.Request) -> web.Response:
    """Answer 200 while requests are taken, else the 503 that they would get."""
    request.app[SERVICE].served()
    return reply(Status("ready"))


async def show_metrics(request: web.Request) -> web.Response:
    """Answer with the metrics in Prometheus's text format."""
    exposition = request.app[SERVICE].metrics.exposition()
    return web.Response(body=exposition, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE})


OPERATIONS_ROUTES = in_dialect(
    DIALECT,
    Route(
        hdrs.METH_GET,
        "/health",
        show_health,
        "Tell that the process lives.",
        answer=Health,
        errors=(),
    ),
    Route(
        hdrs.METH_GET,
        "/ready",
        show_readiness,
        "Tell whether requests are taken now.",
        answer=Status,
        errors=(*READ_ERRORS, 503),
    ),
    Route(
        hdrs.METH_GET,
        "/metrics",
        show_metrics,
        "Give the metrics in Prometheus's text format.",
    ),
)
