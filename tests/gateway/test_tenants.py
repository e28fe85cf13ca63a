"""What tenants may have, as their clients meet it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.tenants import TenantConfig
from prefixcache.control import TenantQuota
from prefixcache.types import FinishReason
from tests.support.bodies import CHAT, CHAT_BODY, TEXT, TEXT_BODY, error_of
from tests.support.gateways import MODEL, echo_backend
from tests.support.scripted import ScriptedBackend
from tests.support.tenancy import ACME, ADMIN, BETA, Keyed, bearer, keyed_gateway
from tests.support.tokenizers import write_piece_tokenizer
from tests.support.waiting import until


async def chat(keyed: Keyed, key: str, max_retries: int = 0) -> Any:
    return await keyed.openai(key, max_retries).chat.completions.create(**CHAT_BODY)


async def counters(keyed: Keyed) -> dict[str, float]:
    async with keyed.gateway.http.get(
        keyed.gateway.url + "/metrics", headers=bearer(ADMIN)
    ) as reply:
        lines = (await reply.text()).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


async def test_a_rate_is_told_before_and_when_it_is_used(tmp_path: Path) -> None:
    """Answers say what is left; the one too many is RateLimitError with when to come back."""
    async with keyed_gateway(echo_backend(tmp_path), TenantConfig(requests_per_minute=1)) as keyed:
        raw = await keyed.openai(ACME).chat.completions.with_raw_response.create(**CHAT_BODY)
        assert raw.headers["x-ratelimit-limit-requests"] == "1"
        assert raw.headers["x-ratelimit-remaining-requests"] == "0"
        assert raw.headers["x-ratelimit-reset-requests"] == "1m0s"
        keyed.clock.now += 30.5
        with pytest.raises(openai.RateLimitError) as caught:
            await chat(keyed, ACME)
        headers = caught.value.response.headers
        assert (headers["retry-after"], headers["retry-after-ms"]) == ("30", "29500")
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert caught.value.code == "rate_limit_exceeded"
        await chat(keyed, BETA)
        keyed.clock.now += 29.5
        await chat(keyed, ACME)


async def test_a_rate_is_judged_before_the_body(tmp_path: Path) -> None:
    """A request over its rate is refused though its body never comes."""
    async with keyed_gateway(echo_backend(tmp_path), TenantConfig(requests_per_minute=1)) as keyed:
        await chat(keyed, ACME)
        reader, writer = await asyncio.open_connection("127.0.0.1", keyed.gateway.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ACME}\r\n"
        writer.write(f"{head}Content-Length: 99\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 429 ")
        writer.close()


async def test_looking_is_free(tmp_path: Path) -> None:
    """The list of models is not among the requests that are counted."""
    async with keyed_gateway(echo_backend(tmp_path), TenantConfig(requests_per_minute=1)) as keyed:
        for _ in range(3):
            await keyed.openai(ACME).models.list()
        await chat(keyed, ACME)


async def test_used_tokens_are_waited_for(tmp_path: Path) -> None:
    """When a minute's tokens are used, the next request waits for some."""
    async with keyed_gateway(echo_backend(tmp_path), TenantConfig(tokens_per_minute=6)) as keyed:
        raw = await keyed.openai(ACME).chat.completions.with_raw_response.create(**CHAT_BODY)
        usage: Any = raw.parse().usage
        assert usage.total_tokens == 4
        with pytest.raises(openai.RateLimitError) as caught:
            await chat(keyed, ACME)
        headers = caught.value.response.headers
        assert headers["x-ratelimit-remaining-tokens"] == "2"
        assert int(headers["retry-after"]) >= 30
        keyed.clock.now += float(headers["retry-after-ms"]) / 1000
        await chat(keyed, ACME)


async def test_a_used_quota_is_not_tried_again(tmp_path: Path) -> None:
    """The month's end is RateLimitError at once, however often the client would try again."""
    config = TenantConfig(tokens_per_month=4)
    async with keyed_gateway(echo_backend(tmp_path), config) as keyed:
        await chat(keyed, ACME)
        with pytest.raises(openai.RateLimitError) as caught:
            await chat(keyed, ACME, max_retries=5)
        assert caught.value.code == "insufficient_quota"
        assert caught.value.response.headers["x-should-retry"] == "false"
        found = await counters(keyed)
        assert (
            found['prefixcache_http_requests_total{route="/v1/chat/completions",status="429"}'] == 1
        )
        keyed.wall_clock.now += 86_400  # December
        await chat(keyed, ACME)


async def test_a_prompt_that_can_never_pass_is_not_tried_again(tmp_path: Path) -> None:
    """More prompt than a minute's tokens is refused for good."""
    async with keyed_gateway(echo_backend(tmp_path), TenantConfig(tokens_per_minute=1)) as keyed:
        with pytest.raises(openai.RateLimitError) as caught:
            await chat(keyed, ACME, max_retries=5)
        assert caught.value.code == "request_over_limit"


async def test_running_requests_have_a_limit_of_their_tenant(tmp_path: Path) -> None:
    """One too many is 429; others' are let pass; when the client leaves there is room again."""
    write_piece_tokenizer(tmp_path, [b"one"])
    endless = ["x", None]
    done: list[Any] = ["x", FinishReason.STOP]
    backend = ScriptedBackend(tmp_path, [endless, done, done])
    async with keyed_gateway(backend, TenantConfig(max_concurrent_requests=1)) as keyed:
        stream = await keyed.openai(ACME).chat.completions.create(**CHAT_BODY, stream=True)
        await anext(aiter(stream))
        with pytest.raises(openai.RateLimitError) as caught:
            await chat(keyed, ACME)
        assert caught.value.code == "too_many_requests"
        assert caught.value.response.headers["retry-after"] == "1"
        await chat(keyed, BETA)
        await stream.close()
        acme = keyed.tenancy.roster.tenants["acme"]
        await until(lambda: keyed.tenancy.meter(acme).n_open == 0)
        await chat(keyed, ACME)


async def test_waiting_answers_have_a_limit_of_their_tenant(tmp_path: Path) -> None:
    """Choices count each: more than may wait are refused, as many are answered."""
    async with keyed_gateway(echo_backend(tmp_path), TenantConfig(max_queued=2)) as keyed:
        client = keyed.openai(ACME)
        with pytest.raises(openai.RateLimitError, match="3 answers"):
            await client.chat.completions.create(**CHAT_BODY, n=3)
        assert len((await client.chat.completions.create(**CHAT_BODY, n=2)).choices) == 2


async def test_models_are_a_tenants_own_choice_of_operator(tmp_path: Path) -> None:
    """A model that is not on the list is 403 wherever it is named, and is not listed."""
    config = TenantConfig(models=("formal",))
    async with keyed_gateway(echo_backend(tmp_path), config) as keyed:
        with pytest.raises(openai.PermissionDeniedError) as caught:
            await chat(keyed, ACME)
        assert (caught.value.code, caught.value.param) == ("model_refused", "model")
        status, reply = await keyed.gateway.post(TEXT, TEXT_BODY, **bearer(ACME))
        assert (status, error_of(reply)["code"]) == (403, "model_refused")
        client = keyed.openai(ACME)
        with pytest.raises(openai.PermissionDeniedError):
            await client.models.retrieve(MODEL)
        assert [card.id async for card in client.models.list()] == []
        assert [card.id async for card in keyed.openai(BETA).models.list()] == [MODEL]
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("nonsense")


async def test_what_the_engine_is_asked_is_the_tenants(tmp_path: Path) -> None:
    """The tenant's name, priority and longest answer go with each request."""
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = ScriptedBackend(tmp_path, [["x", FinishReason.STOP]] * 2)
    config = TenantConfig(priority=5, max_output_tokens=3)
    async with keyed_gateway(backend, config) as keyed:
        for key in (ACME, BETA):
            body = {**CHAT_BODY, "priority": -7}
            assert (await keyed.gateway.post(CHAT, body, **bearer(key)))[0] == 200
    acme, beta = backend.requests
    assert (acme.tenant, acme.priority, acme.sampling.max_tokens) == ("acme", 5, 3)
    assert (beta.tenant, beta.priority, beta.sampling.max_tokens) == ("beta", 0, 4)


async def test_a_tenant_cannot_be_named_in_a_body(tmp_path: Path) -> None:
    """Fields and headers that look like it change nothing."""
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = ScriptedBackend(tmp_path, [["x", FinishReason.STOP]])
    async with keyed_gateway(backend) as keyed:
        body = {**CHAT_BODY, "tenant": "beta", "user": "beta"}
        headers = {**bearer(ACME), "X-Tenant": "beta"}
        assert (await keyed.gateway.post(CHAT, body, **headers))[0] == 200
    assert [request.tenant for request in backend.requests] == ["acme"]


async def test_metrics_are_told_by_tenant(tmp_path: Path) -> None:
    """Requests by outcome, tokens by source; tenants beyond the bound are one."""
    config = TenantConfig(models=("tiny",))
    async with keyed_gateway(echo_backend(tmp_path), config, max_tenant_labels=1) as keyed:
        for key in (ACME, ACME, BETA):
            await chat(keyed, key)
        assert (await keyed.gateway.post(CHAT, {"model": 5}, **bearer(ACME)))[0] == 400
        found = {
            name.removeprefix("prefixcache_tenant_"): value
            for name, value in (await counters(keyed)).items()
            if name.startswith("prefixcache_tenant_") and "_created" not in name
        }
    assert found == {
        'requests_total{outcome="ok",tenant="acme"}': 2,
        'requests_total{outcome="failed",tenant="acme"}': 1,
        'requests_total{outcome="ok",tenant="other"}': 1,
        'tokens_total{source="computed",tenant="acme"}': 3,
        'tokens_total{source="cached",tenant="acme"}': 1,
        'tokens_total{source="written",tenant="acme"}': 0,
        'tokens_total{source="output",tenant="acme"}': 4,
        'tokens_total{source="computed",tenant="other"}': 2,
        'tokens_total{source="cached",tenant="other"}': 0,
        'tokens_total{source="written",tenant="other"}': 0,
        'tokens_total{source="output",tenant="other"}': 2,
    }


async def test_the_list_of_tenants_has_no_keys(tmp_path: Path) -> None:
    """The operator sees limits and what is used now, and neither keys nor hashes."""
    config = TenantConfig(
        requests_per_minute=10, tokens_per_minute=100, kv=TenantQuota(max_tokens=64)
    )
    backend = QuotaBackend(tmp_path, [["x", FinishReason.STOP]])
    write_piece_tokenizer(tmp_path, [b"one"])
    async with keyed_gateway(backend, config) as keyed:
        await chat(keyed, ACME)
        url = keyed.gateway.url + "/admin/tenants"
        async with keyed.gateway.http.get(url, headers=bearer(ADMIN)) as reply:
            text = await reply.text()
            acme, beta = (await reply.json())["data"]
    assert "sha256" not in text
    assert (acme["name"], acme["n_keys"], beta["name"]) == ("acme", 1, "beta")
    assert acme["limits"]["requests_per_minute"] == 10
    assert acme["limits"]["kv"] == {"reserved_tokens": 0, "max_tokens": 64, "weight": 1.0}
    now = acme["now"]
    assert (now["concurrent_requests"], now["queued"], now["requests_remaining"]) == (0, 0, 9)
    assert now["tokens_remaining"] == 100 - now["month_tokens"]
    assert beta["now"]["requests_remaining"] is None


class QuotaBackend(ScriptedBackend):
    """Plays its scripts and keeps the quotas that it is given."""

    def __init__(self, folder: Path, scripts: list[Any]) -> None:
        super().__init__(folder, scripts)
        self.quotas: list[dict[str, TenantQuota]] = []

    async def set_quotas(self, quotas: dict[str, TenantQuota]) -> None:
        self.quotas.append(dict(quotas))

    async def publish(self, publication: Any) -> Any: ...

    async def retire(self, prompt_id: str) -> None: ...

    async def invalidate(self, invalidation: Any) -> None: ...

    async def inspect(self, *, max_nodes: int = 1000, tenant: str | None = None) -> Any: ...


async def test_quotas_of_kv_reach_the_engine(tmp_path: Path) -> None:
    """At the start the backend is told those that differ from the default."""
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = QuotaBackend(tmp_path, [])
    quota = TenantQuota(reserved_tokens=32, weight=2)
    async with keyed_gateway(backend, TenantConfig(kv=quota)):
        assert backend.quotas == [{"acme": quota}]
