"""Errors are told in the dialect of the route that was asked, known or not."""

from __future__ import annotations

import json

import pytest
from aiohttp.test_utils import make_mocked_request

from gateway.envelopes import Envelope, envelope_for
from gateway.errors import (
    AccessRefusedError,
    BodyTooLargeError,
    DrainingError,
    GenerationFailedError,
    InvalidRequestError,
    ModelNotFoundError,
    ModelRefusedError,
    OverloadedError,
    RateLimitedError,
    UnauthenticatedError,
)
from gateway.verdicts import verdict
from prefixcache.types import FailureKind
from tests.support.gateways import Gateway

OVERLOADED = GenerationFailedError(FailureKind.OVERLOADED, "full")


def told(envelope: Envelope, error: BaseException) -> tuple[int, dict[str, object]]:
    return envelope.status(verdict(error)), json.loads(envelope.body(error, "req_1"))


def of(path: str) -> Envelope:
    return envelope_for(make_mocked_request("POST", path))


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequestError("no", "system"), 400, "invalid_request_error"),
        (UnauthenticatedError(is_missing=True), 401, "authentication_error"),
        (AccessRefusedError(needs_admin=False), 403, "permission_error"),
        (ModelRefusedError("other"), 403, "permission_error"),
        (RateLimitedError("tokens", 60, 1.5), 429, "rate_limit_error"),
        (ModelNotFoundError("other", "tiny"), 404, "not_found_error"),
        (BodyTooLargeError(5), 413, "request_too_large"),
        (OVERLOADED, 529, "overloaded_error"),
        (OverloadedError(3), 529, "overloaded_error"),
        (DrainingError("stops"), 503, "overloaded_error"),
        (GenerationFailedError(FailureKind.DEADLINE, "late"), 408, "timeout_error"),
        (ValueError("secret"), 500, "api_error"),
    ],
)
def test_anthropics_envelope(error: BaseException, status: int, kind: str) -> None:
    """Its own types, a status of its own where the server is full, and the request's id."""
    found, body = told(of("/v1/messages"), error)
    message = "internal error" if kind == "api_error" else str(error)
    assert (found, body) == (
        status,
        {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"},
    )


@pytest.mark.parametrize(
    ("error", "status", "name", "reason"),
    [
        (InvalidRequestError("no", "x"), 400, "INVALID_ARGUMENT", "INVALID_VALUE"),
        (UnauthenticatedError(is_missing=True), 401, "UNAUTHENTICATED", "INVALID_API_KEY"),
        (AccessRefusedError(needs_admin=False), 403, "PERMISSION_DENIED", "ACCESS_REFUSED"),
        (RateLimitedError("tokens", 60, 1.5), 429, "RESOURCE_EXHAUSTED", "RATE_LIMIT_EXCEEDED"),
        (ModelNotFoundError("other", "tiny"), 404, "NOT_FOUND", "MODEL_NOT_FOUND"),
        (OVERLOADED, 429, "RESOURCE_EXHAUSTED", "OVERLOADED"),
        (DrainingError("stops"), 503, "UNAVAILABLE", "DRAINING"),
        (ValueError("secret"), 500, "INTERNAL", "INTERNAL_ERROR"),
    ],
)
def test_googles_envelope(error: BaseException, status: int, name: str, reason: str) -> None:
    """Code, message and status, and our own code as the reason."""
    found, body = told(of("/v1beta/models/tiny:generateContent"), error)
    shown = body["error"]
    assert isinstance(shown, dict)
    assert (found, shown["code"], shown["status"]) == (status, status, name)
    assert shown["message"] == ("internal error" if status == 500 else str(error))
    assert shown["details"][0]["reason"] == reason


def test_a_stream_ends_with_the_error_in_its_own_framing() -> None:
    """Events have the names that clients wait for, and an array stays JSON to its end."""
    error = InvalidRequestError("no")
    named = of("/v1/messages").event(error, "req_1")
    assert named.startswith(b"event: error\ndata: {")
    path = "/v1beta/models/tiny:streamGenerateContent"
    assert of(f"{path}?alt=sse").event(error, "r").startswith(b'data: {"error":')
    first, last = json.loads(b"[{}" + of(path).event(error, "r"))
    assert first == {}
    assert last["error"]["code"] == 400


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/messages/x", "request_id"),
        ("/v1beta/x", "status"),
        ("/v1/messagesx", "param"),
        ("/v1/cachedContents/x/y", "status"),
    ],
)
async def test_unknown_routes_too(gateway: Gateway, path: str, field: str) -> None:
    """A route that is not there is a 404 in the dialect that its path belongs to."""
    status, body = await gateway.post(path, {})
    assert status == 404
    error = body["error"]
    assert isinstance(error, dict)
    assert field in {**body, **error}


async def test_anthropics_own_header_carries_the_id(gateway: Gateway) -> None:
    """Its clients look for `request-id`; others do not get it."""
    for path, is_there in (("/v1/messages/x", True), ("/v1/x", False)):
        async with gateway.http.get(gateway.url + path) as response:
            assert ("request-id" in response.headers) is is_there
            if is_there:
                assert response.headers["request-id"] == response.headers["X-Request-Id"]
