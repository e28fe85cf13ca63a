"""/openapi.json tells the truth: bodies made from it are answered as it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from aiohttp import hdrs

from gateway.api.openapi import describe
from gateway.app import ROUTES, make_app
from gateway.routes import Route
from tests.support.gateways import Gateway

DOCUMENT: Any = msgspec.json.decode(msgspec.json.encode(describe(ROUTES)))

PATTERN = re.compile(r":[^{}]*(?=\})")  # of a parameter
WITH_BODIES = {
    (route.method, PATTERN.sub("", route.path)) for route in ROUTES if route.body is not None
}


def references(value: object) -> Iterator[str]:
    """Yield each reference in a JSON value."""
    if isinstance(value, dict):
        yield from (str(target) for key, target in value.items() if key == "$ref")
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from references(part)


def operations() -> Iterator[tuple[str, str, Any]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


async def test_the_document_is_served(gateway: Gateway) -> None:
    """What is served is what the routes say."""
    status, reply = await gateway.get("/openapi.json")
    assert (status, reply) == (200, DOCUMENT)


async def test_every_route_is_described(gateway: Gateway) -> None:
    """The application answers no method of a path that the document does not have."""
    described = {(path, method.upper()) for path, method, _ in operations()}
    router = make_app(gateway.service).router
    resources = [(route.resource, route.method) for route in router.routes()]
    answered = {(found.canonical, method) for found, method in resources if found is not None}
    assert {each for each in answered if each[1] != hdrs.METH_HEAD} == described


def test_every_reference_leads_somewhere() -> None:
    """No schema is named that is not there."""
    for target in references(DOCUMENT):
        place = DOCUMENT
        for step in target.removeprefix("#/").split("/"):
            place = place[step]


def test_every_operation_is_told_apart() -> None:
    """Ids are unique, path parameters declared, and bodies and successes have schemas."""
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(ids)) == len(ids)
    for path, method, operation in operations():
        names = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
        assert names == set(re.findall(r"\{(\w+)\}", path))
        assert operation["summary"].endswith(".")
        assert ("requestBody" in operation) == ((method.upper(), path) in WITH_BODIES)


def test_patterns_are_valid_outside_of_python() -> None:
    """No pattern has what only Python's expressions know."""
    text = msgspec.json.encode(DOCUMENT).decode()
    patterns = re.findall(r'"pattern":"((?:[^"\\]|\\.)*)"', text)
    assert patterns
    assert not any(mark in pattern for pattern in patterns for mark in (r"\\A", r"\\Z"))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_streams_are_told_of(route: Route) -> None:
    """A route that may stream has both kinds of content, others have one at most."""
    path = PATTERN.sub("", route.path)
    content = DOCUMENT["paths"][path][route.method.lower()]["responses"]["200"].get("content", {})
    assert ("text/event-stream" in content) == route.streams
    assert route.method != hdrs.METH_POST or "application/json" in content
