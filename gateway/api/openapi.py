"""GET /openapi.json: the API described from the types that read and write it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from http import HTTPStatus

import msgspec
from aiohttp import hdrs, web

from gateway.http import json_response
from gateway.routes import Route

OPENAPI_PATH = "/openapi.json"

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(?P<name>\w+)(?::[^{}]*)?\}")
_PHRASES = {529: "Overloaded"}  # Anthropic's own
_JSON, _EVENTS = "application/json", "text/event-stream"
_INFO = {
    "title": "prefixcache",
    "version": "1",
    "summary": "Chat and completions in several dialects over a cache of every prompt's prefix.",
}

Json = dict[str, object]


class ApiDescription:
    """The OpenAPI 3.1 document of some routes; written when it is first asked for."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)

    @cached_property
    def document(self) -> bytes:
        """The document as JSON."""
        return msgspec.json.encode(describe(self._routes))


DESCRIPTION: web.AppKey[ApiDescription] = web.AppKey("description", ApiDescription)


async def show_description(request: web.Request) -> web.Response:
    """Answer with the document."""
    return json_response(request.app[DESCRIPTION].document)


DESCRIPTION_ROUTE = Route(
    hdrs.METH_GET,
    OPENAPI_PATH,
    show_description,
    "Describe this API.",
    dialect="operations",
    answer=dict[str, object],
)


def describe(routes: Sequence[Route]) -> Json:
    """Return the OpenAPI 3.1 document of `routes`.

    Fields that may be left out may also be null. What a type does not know is ignored, unless
    its schema says that it has no additional properties.
    """
    types = list(dict.fromkeys(_types(routes)))
    schemas, components = msgspec.json.schema_components(types, schema_hook=_any, ref_template=_REF)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for route in routes:
        operation = _operation(route, by_type, components)
        paths.setdefault(_plain_path(route), {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": _INFO,
        "paths": paths,
        "components": {"schemas": components},
    }


def _any(unknown: type) -> Json:
    """Return the schema of what may be any JSON value (annotated as object)."""
    return {"description": "Any JSON value."}


def _types(routes: Iterable[Route]) -> Iterable[type]:
    for route in routes:
        found = (route.body, route.query, route.answer, *route.other_answers)
        yield from (each for each in found if each is not None)
        yield from (route.error, *route.other_error_replies)


def _plain_path(route: Route) -> str:
    return _PARAMETER.sub(r"{\g<name>}", route.path)


def _operation(route: Route, schemas: dict[type, Json], components: dict[str, Json]) -> Json:
    found: Json = {
        "summary": route.summary,
        "tags": [route.dialect],
        "operationId": route.operation or route.handler.__name__,
        "responses": _responses(route, schemas),
    }
    parameters = [*_path_parameters(route), *_query_parameters(route, schemas, components)]
    if parameters:
        found["parameters"] = parameters
    if route.body is not None:
        content = {_JSON: {"schema": schemas[route.body]}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _responses(route: Route, schemas: dict[type, Json]) -> Json:
    content: Json = {}
    if route.answer is not None:
        content[_JSON] = _schema((route.answer, *route.other_answers), schemas)
    if route.streams:
        content[_EVENTS] = {"schema": {"type": "string"}}
    answers: Json = {"200": {"description": "Success"} | ({"content": content} if content else {})}
    refused = {_JSON: _schema((route.error, *route.other_error_replies), schemas)}
    for status in sorted(route.errors):
        phrase = _PHRASES.get(status) or HTTPStatus(status).phrase
        answers[str(status)] = {"description": phrase, "content": refused}
    return answers


def _schema(types: Sequence[type], schemas: dict[type, Json]) -> Json:
    """Return what is said of content that is of one of `types`."""
    found = [schemas[each] for each in types]
    return {"schema": found[0] if len(found) == 1 else {"anyOf": found}}


def _path_parameters(route: Route) -> list[Json]:
    return [
        {"name": found["name"], "in": "path", "required": True, "schema": {"type": "string"}}
        for found in _PARAMETER.finditer(route.path)
    ]


def _query_parameters(
    route: Route, schemas: dict[type, Json], components: dict[str, Json]
) -> list[Json]:
    if route.query is None:
        return []
    name = str(schemas[route.query]["$ref"]).rpartition("/")[2]
    properties = components[name]["properties"]
    assert isinstance(properties, dict)  # the schema of a struct
    return [
        {"name": field, "in": "query", "required": False, "schema": schema}
        for field, schema in properties.items()
    ]
