"""OpenAI's cache fields, from the body to what the engine is asked to keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefixcache.index import unpack
from prefixcache.types import FinishReason, GenerationRequest, Retain
from tests.support.bodies import CHAT, error_of
from tests.support.gateways import MODEL, Gateway, running_gateway
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import write_chat_tokenizer

RESPONSES = "/v1/responses"
HALF_HOUR, HALF_DAY = 1800.0, 12 * 3600.0
EXPLICIT = {"mode": "explicit"}


async def asked(folder: Path, path: str, body: dict[str, Any]) -> tuple[GenerationRequest, Gateway]:
    """Return what the engine is asked for a body, and the gateway that asked."""
    write_chat_tokenizer(folder)
    backend = ScriptedBackend(folder, [[FinishReason.STOP]])
    backend.max_model_tokens = 2000
    async with running_gateway(backend) as gateway:
        status, reply = await gateway.post(path, {"model": MODEL} | body)
        assert status == 200, reply
    return backend.requests[0], gateway


def chat(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]} | fields


def part(text: str, **breakpoint_fields: Any) -> dict[str, Any]:
    mark = {"prompt_cache_breakpoint": EXPLICIT | breakpoint_fields}
    return {"type": "text", "text": text} | mark


def kept_text(gateway: Gateway, request: GenerationRequest, retain: Retain) -> str:
    """Return what the tokens that are kept spell."""
    ids = unpack(request.token_ids)[: retain.n_tokens]
    return gateway.service._served.encoder.tokenizer.decode(ids)  # type: ignore[union-attr]


async def test_a_breakpoint_keeps_what_comes_before_it(tmp_path: Path) -> None:
    """The kept tokens spell the prompt up to the end of the marked part, each for its time."""
    body = chat(part("alpha"), part("beta", ttl="12h"), {"type": "text", "text": "gamma"})
    request, gateway = await asked(tmp_path, CHAT, body)
    assert [retain.seconds for retain in request.retain] == [HALF_HOUR, HALF_DAY]
    texts = [kept_text(gateway, request, retain) for retain in request.retain]
    assert texts == ["user\nalpha", "user\nalphabeta"]


async def test_responses_mark_parts_as_well(tmp_path: Path) -> None:
    """input_text parts of a response's messages have the same breakpoints."""
    parts = [part("alpha") | {"type": "input_text"}, {"type": "input_text", "text": "beta"}]
    body = {"input": [{"role": "user", "content": parts}], "instructions": "i"}
    request, gateway = await asked(tmp_path, RESPONSES, body)
    (retain,) = request.retain
    assert kept_text(gateway, request, retain) == "system\ni\nuser\nalpha"


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_lifetime_keeps_the_whole_prompt(tmp_path: Path, path: str) -> None:
    """The automatic breakpoint of a request with a lifetime is the prompt's end."""
    said = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"input": "x"}
    request, _ = await asked(tmp_path, path, said | {"prompt_cache_options": {"ttl": "30m"}})
    assert request.retain == (Retain(len(request.token_ids) // 4, HALF_HOUR),)
    assert request.store_cache
    assert request.read_cache


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_explicit_without_breakpoints_does_without_the_cache(
    tmp_path: Path, path: str
) -> None:
    """Such a request neither reads nor writes."""
    said = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"input": "x"}
    request, _ = await asked(tmp_path, path, said | {"prompt_cache_options": EXPLICIT})
    assert (request.read_cache, request.store_cache, request.retain) == (False, False, ())


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_our_own_fields_hold_in_both(tmp_path: Path, path: str) -> None:
    """Salt, cache, priority and deadline reach the engine; not to store is not to keep either."""
    said = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"input": "x"}
    fields = {
        "cache_salt": "s",
        "cache": {"store": False},
        "priority": -3,
        "deadline_seconds": 7.5,
        "prompt_cache_options": {"ttl": "12h"},
        "prompt_cache_key": "any",
        "prompt_cache_retention": "24h",
    }
    request, _ = await asked(tmp_path, path, said | fields)
    assert (request.salt, request.priority, request.deadline_seconds) == ("s", -3, 7.5)
    assert (request.read_cache, request.store_cache, request.retain) == (True, False, ())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (chat({"type": "text", "text": "x", "prompt_cache_breakpoint": {}}), "messages"),
        (chat(part("x", ttl="1h")), "messages"),
        (chat(part("x"), prompt_cache_options={"mode": "never"}), "prompt_cache_options.mode"),
        (chat(part("x"), prompt_cache_options={"ttl": "5m"}), "prompt_cache_options.ttl"),
        (chat(part("x"), prompt_cache_retention="1h"), "prompt_cache_retention"),
        (chat(part("x"), prompt_cache_key="k" * 2000), "prompt_cache_key"),
    ],
    ids=str,
)
async def test_a_wrong_value_is_refused_by_name(
    gateway: Gateway, fields: dict[str, Any], param: str
) -> None:
    """Modes and lifetimes that are not OpenAI's are a 400 that names the field."""
    status, reply = await gateway.post(CHAT, {"model": MODEL} | fields)
    assert status == 400
    assert str(error_of(reply)["param"]).startswith(param)
