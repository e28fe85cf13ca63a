"""Routes as values: what a path answers, and what its description says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import msgspec
from aiohttp import hdrs, web

from gateway.error_replies import ErrorReply
from gateway.http import defer_continue

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

READ_ERRORS = (401, 403, 408)  # what any route can answer before its handler looks at anything
LOOK_ERRORS = (*READ_ERRORS, 503)  # of routes that tell about the model
BODY_ERRORS = (*READ_ERRORS, 400, 413, 429)
COUNT_ERRORS = (*BODY_ERRORS, 404, 503)  # of routes that read a prompt and no more
ANSWER_ERRORS = (*COUNT_ERRORS, 500)  # of routes that run the model


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. The router and /openapi.json are both made of these."""

    method: str
    path: str  # as aiohttp writes it, such as /v1/models/{model:.+}
    handler: Handler
    summary: str  # one sentence, for people
    _: KW_ONLY
    dialect: str = ""  # whose clients it is for; `in_dialect` fills it in
    body: type | None = None  # JSON; None: it takes none
    query: type[msgspec.Struct] | None = None  # its fields are the parameters
    answer: type | None = None  # JSON on success; None: some other text
    other_answers: tuple[type, ...] = ()  # what clients of other dialects get in its place
    streams: bool = False  # may answer with server-sent events instead
    errors: tuple[int, ...] = READ_ERRORS
    error: type = ErrorReply
    other_error_replies: tuple[type, ...] = ()  # as `other_answers`
    operation: str | None = None  # its name in the description; None: the handler's


def in_dialect(dialect: str, *routes: Route, error: type = ErrorReply) -> tuple[Route, ...]:
    """Return `routes` as those of one dialect, whose clients find what went wrong in an `error`."""
    return tuple(replace(route, dialect=dialect, error=error) for route in routes)


def in_versions(versions: Sequence[str], routes: Sequence[Route]) -> Iterator[Route]:
    """Yield `routes` under each of `versions`: the first part of a path, and the last of a name."""
    for version in versions:
        for route in routes:
            name = f"{route.operation or route.handler.__name__}_{version}"
            yield replace(route, path=f"/{version}{route.path}", operation=name)


def add_routes(router: web.UrlDispatcher, routes: Iterable[Route]) -> None:
    """Add `routes` to `router`. Those with a body judge a request before they let it be sent."""
    for route in routes:
        if route.method == hdrs.METH_GET:
            router.add_get(route.path, route.handler)  # and HEAD
        else:
            expect = None if route.body is None else defer_continue
            router.add_route(route.method, route.path, route.handler, expect_handler=expect)
