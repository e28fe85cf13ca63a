"""A model that is not served is refused by every route that names one."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.app import ROUTES
from tests.support.gateways import Gateway

TURNS = [{"role": "user", "content": "one"}]
FIELDS = {  # whatever any of the routes needs
    "messages": TURNS, "prompt": "one", "input": "one", "tokens": [1], "max_tokens": 1,
    "contents": [{"parts": [{"text": "one"}]}], "name": "p", "system": "one",
}  # fmt: skip
NAMED = {
    route.path: route
    for route in ROUTES
    if route.method == "POST" and "model" in getattr(route.body, "__struct_fields__", ())
}


@pytest.mark.parametrize("path", NAMED)
async def test_an_unknown_model_is_not_found(gateway: Gateway, path: str) -> None:
    """It is a 404 in the words of the route's dialect; no other model answers in its place."""
    before, _, after = path.partition("{model:.+}")
    needed = getattr(NAMED[path].body, "__struct_fields__", ())
    body: Any = {name: value for name, value in FIELDS.items() if name in needed}
    if path == "/tokenize":
        del body["messages"]  # one of the two
    elif path != "/v1/completions":
        body.pop("prompt", None)  # which is a published one there
    url = f"{before}nonsense{after}" if after else path
    status, reply = await gateway.post(url, body | {"model": "nonsense"})
    error: Any = reply["error"]
    assert status == 404, reply
    assert "nonsense" in error["message"]
    told = error.get("code"), error["type" if "type" in error else "status"]
    assert told in {
        ("model_not_found", "invalid_request_error"),
        (None, "not_found_error"),
        (404, "NOT_FOUND"),
    }
