"""The models that there are, as clients of every dialect are told of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.tenants import TenantConfig
from tests.support.gateways import MODEL, echo_backend
from tests.support.tenancy import ACME, BETA, bearer, keyed_gateway

ANTHROPIC = {"anthropic-version": "2023-06-01"}
GOOGLE = {"x-goog-api-client": "tests"}
LISTS: list[tuple[str, dict[str, str], str, str]] = [  # path, headers, the list's field, the name's
    ("/v1/models", {}, "data", "id"),
    ("/v1/models", ANTHROPIC, "data", "id"),
    ("/v1/models", GOOGLE, "models", "displayName"),
    ("/v1beta/models", {}, "models", "displayName"),
]


@pytest.mark.parametrize(("path", "headers", "data", "name"), LISTS)
async def test_a_tenant_is_told_of_its_own_models(
    tmp_path: Path, path: str, headers: dict[str, str], data: str, name: str
) -> None:
    """A model that it may not ask is in no list, and is refused where it is looked up."""
    config = TenantConfig(models=("formal",))
    async with keyed_gateway(echo_backend(tmp_path), config) as keyed:

        async def look(key: str, path: str) -> tuple[int, Any]:
            url, sent = keyed.gateway.url + path, bearer(key) | headers
            async with keyed.gateway.http.get(url, headers=sent) as reply:
                return reply.status, await reply.json()

        status, found = await look(ACME, path)
        assert (status, found[data]) == (200, [])
        status, found = await look(BETA, path)
        assert (status, [card[name] for card in found[data]]) == (200, [MODEL])
        for key, expected in ((ACME, 403), (BETA, 200)):
            assert (await look(key, f"{path}/{MODEL}"))[0] == expected
            assert (await look(key, f"{path}/nonsense"))[0] == 404


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "one"}), ("/detokenize", {"tokens": [1]})]
)
async def test_tokens_are_counted_for_who_may_ask_the_model(
    tmp_path: Path, path: str, body: dict[str, Any], named: bool
) -> None:
    """Its vocabulary is told to nobody else, whether the body names the model or not."""
    sent = body | ({"model": MODEL} if named else {})
    async with keyed_gateway(echo_backend(tmp_path), TenantConfig(models=("formal",))) as keyed:
        assert (await keyed.gateway.post(path, sent, **bearer(ACME)))[0] == 403
        assert (await keyed.gateway.post(path, sent, **bearer(BETA)))[0] == 200
