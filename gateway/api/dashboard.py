"""The page that an operator looks at, and what it shows: /dashboard and /admin/dashboard."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import msgspec
from aiohttp import hdrs, web

from gateway.api.prompt_cards import PromptCard, cards_of
from gateway.errors import InvalidRequestError
from gateway.http import SERVICE, reply
from gateway.routes import READ_ERRORS, Route, in_dialect
from gateway.service import Service
from gateway.trends import Interval, Trends
from prefixcache.control import Inspection
from prefixcache.types import EngineStats

DIALECT = "dashboard"
TRENDS: web.AppKey[Trends] = web.AppKey("trends", Trends)

_MOST_NODES = 20_000
_PAGE = "index.html"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FILES = frozenset({"app.js", "charts.js", "icicle.js", "numbers.js", "style.css", "icon.svg"})
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    hdrs.CACHE_CONTROL: "no-cache",
}


class SnapshotQuery(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the trees."""

    nodes: int = 1500  # the most that are wanted, of all trees together


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that the dashboard shows. Never a prompt, a token, a key or a salt."""

    now: float  # seconds since the epoch
    model: str | None  # null: it is being loaded
    is_ready: bool
    engine: EngineStats  # since the server started
    index: Inspection | None  # null: there is none to look at now
    prompts: list[PromptCard]  # what is published; none while there is no index
    trend_seconds: float  # an interval's
    trends: list[Interval]  # the oldest first


async def show_snapshot(request: web.Request) -> web.Response:
    """Answer with the state now and over time."""
    service = request.app[SERVICE]
    index = await service.inspected(max_nodes=_wanted_nodes(request))
    prompts = [] if index is None else _prompts(service, index)
    snapshot = Snapshot(
        now=service.wall_clock(),
        model=service.served().name if service.is_ready else None,
        is_ready=service.is_ready,
        engine=service.stats(),
        index=index,
        prompts=prompts,
        trend_seconds=service.config.trend_seconds,
        trends=request.app[TRENDS].intervals,
    )
    response = reply(snapshot)
    response.headers[hdrs.CACHE_CONTROL] = "no-store"
    return response


async def show_dashboard(request: web.Request) -> web.Response:
    """Answer with the page."""
    return _file(_PAGE)


async def show_dashboard_file(request: web.Request) -> web.Response:
    """Answer with one of the page's files."""
    name = request.match_info["name"]
    if name not in _FILES:
        raise web.HTTPNotFound
    return _file(name)


def _prompts(service: Service, index: Inspection) -> list[PromptCard]:
    """Return what is told of published prompts; none of a server that is stopping."""
    if not service.is_ready:
        return []
    cached = {each.prompt_id: each.cached_tokens for each in index.publications}
    return cards_of(service, service.prompts.entries(tenant=None), cached, for_admin=True)


def _wanted_nodes(request: web.Request) -> int:
    """Return how many nodes are asked for. Raises InvalidRequestError where that is no number."""
    try:
        query = msgspec.convert(dict(request.query), SnapshotQuery, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequestError("nodes: a whole number is needed", "nodes") from error
    if not 0 <= query.nodes <= _MOST_NODES:
        reason = f"nodes: {query.nodes} is not from 0 to {_MOST_NODES}"
        raise InvalidRequestError(reason, "nodes")
    return query.nodes


def _file(name: str) -> web.Response:
    kind = _TYPES[name.rpartition(".")[2]]
    return web.Response(body=_content(name), content_type=kind, charset="utf-8", headers=_HEADERS)


@cache
def _content(name: str) -> bytes:
    return files("gateway").joinpath("dashboard", name).read_bytes()


DASHBOARD_ROUTES = in_dialect(  # the admin's alone (`gateway.access`)
    DIALECT,
    Route(
        hdrs.METH_GET,
        "/dashboard",
        show_dashboard,
        "Show the page that operators look at.",
    ),
    Route(
        hdrs.METH_GET,
        "/dashboard/{name}",
        show_dashboard_file,
        "Give a file of that page.",
        errors=(*READ_ERRORS, 404),
    ),
    Route(
        hdrs.METH_GET,
        "/admin/dashboard",
        show_snapshot,
        "Give what that page shows: counters, trends, pool, tenants, trees.",
        query=SnapshotQuery,
        answer=Snapshot,
        errors=(*READ_ERRORS, 400),
    ),
)
