"""Every dialect, the tenants' accounts and the metrics tell of the same tokens."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from gateway.backends.echo import EchoBackend
from tests.support.gateways import MODEL
from tests.support.tenancy import ACME, ADMIN, Keyed, bearer, keyed_gateway
from tests.support.tokenizers import write_chat_tokenizer

GEMINI = f"/v1beta/models/{MODEL}"


def bodies(text: str) -> dict[str, Any]:
    """Return a body for each way to ask something, by its path."""
    turns = [{"role": "user", "content": text}]
    marked = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
    contents = {"contents": [{"parts": [{"text": text}]}]}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    chat = {"model": MODEL, "messages": turns, "max_tokens": 5}
    response = {"model": MODEL, "input": text, "max_output_tokens": 5}
    message = {"model": MODEL, "max_tokens": 5, "messages": turns}
    two = {"generationConfig": {"candidateCount": 2, "maxOutputTokens": 5}}
    return {
        "/v1/chat/completions": [chat, chat | usage, chat | {"n": 2}, chat | usage | {"n": 2}],
        "/v1/completions": [{"model": MODEL, "prompt": [text, "hello"], "max_tokens": 3, "n": 2}],
        "/v1/responses": [response, response | {"stream": True}],
        "/v1/messages": [message, message | {"stream": True}, message | {"system": marked}],
        f"{GEMINI}:generateContent": [contents, contents | two],
        f"{GEMINI}:streamGenerateContent": [contents, contents | two],
        f"{GEMINI}:streamGenerateContent?alt=sse": [contents | two],
    }


def last_usage(said: str) -> dict[str, Any]:
    """Return the usage that was told last, of a whole answer or of a stream."""
    if said.startswith("[") or "data: " not in said:
        found = json.loads(said)
        told = found if isinstance(found, list) else [found]
    else:
        lines = [line.removeprefix("data: ") for line in said.splitlines()]
        told = [json.loads(line) for line in lines if line.startswith("{")]
    told += [each["response"] for each in told if each.get("response")]
    usages = [each.get("usage") or each.get("usageMetadata") for each in told]
    start = [each["message"]["usage"] for each in told if "message" in each]
    return dict([*start, *filter(None, usages)][-1])


def tokens_of(usage: dict[str, Any]) -> Counter[str]:
    """Return prompt, cached and output tokens of any dialect's usage; of some what was written."""
    if "totalTokenCount" in usage:
        names = ("promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount")
        prompt, cached, output = (usage[name] for name in names)
        return Counter(prompt=prompt, cached=cached, output=output)
    if "cache_read_input_tokens" in usage:
        cached, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        prompt = usage["input_tokens"] + cached + written
        return Counter(prompt=prompt, cached=cached, output=usage["output_tokens"])
    before, after = ("prompt", "completion") if "prompt_tokens" in usage else ("input", "output")
    details = usage[f"{before}_tokens_details"]
    return Counter(
        prompt=usage[f"{before}_tokens"],
        cached=details["cached_tokens"],
        output=usage[f"{after}_tokens"],
        written=details["cache_write_tokens"],
    )


async def told(keyed: Keyed, path: str, body: dict[str, Any]) -> Counter[str]:
    """Send a body and return what its answer says of tokens."""
    url = keyed.gateway.url + path
    async with keyed.gateway.http.post(url, json=body, headers=bearer(ACME)) as reply:
        said = await reply.text()
    assert reply.status == 200, said
    return tokens_of(last_usage(said))


async def accounted(keyed: Keyed) -> Counter[str]:
    """Return what the account of all days says."""
    url = f"{keyed.gateway.url}/admin/usage"
    async with keyed.gateway.http.get(url, headers=bearer(ADMIN)) as reply:
        total = (await reply.json())["total"]
    return Counter(
        prompt=total["uncached_tokens"] + total["read_tokens"],
        cached=total["read_tokens"],
        output=total["output_tokens"],
        written=total["written_tokens"],
    )


async def measured(keyed: Keyed) -> Counter[str]:
    """Return what the tenant's metrics say."""
    async with keyed.gateway.http.get(
        f"{keyed.gateway.url}/metrics", headers=bearer(ADMIN)
    ) as reply:
        lines = (await reply.text()).splitlines()
    found: Counter[str] = Counter()
    for line in lines:
        if line.startswith("prefixcache_tenant_tokens_total{") and 'tenant="acme"' in line:
            found[line.partition('source="')[2].partition('"')[0]] += int(float(line.split()[-1]))
    return Counter(
        prompt=found["computed"] + found["cached"],
        cached=found["cached"],
        output=found["output"],
        written=found["written"],
    )


async def test_accounts_add_up_to_what_clients_were_told(tmp_path: Path) -> None:
    """Over all dialects in any order: prompts, hits and output; and OpenAI's writes one by one."""
    write_chat_tokenizer(tmp_path)
    asked = [
        (path, body)
        for text in ("hello world alpha " * 6, "beta hello " * 9)
        for path, found in bodies(text).items()
        for body in found
    ]
    random.Random(3).shuffle(asked)
    total: Counter[str] = Counter()
    async with keyed_gateway(EchoBackend(tmp_path)) as keyed:
        for path, body in asked:
            before = await accounted(keyed)
            found = await told(keyed, path, body)
            grown = await accounted(keyed) - before
            if "written" in found:
                assert found["written"] == grown["written"], path
            else:
                found["written"] = grown["written"]
            assert +found == grown, (path, body)
            total += found
        assert await accounted(keyed) == await measured(keyed) == total
    assert total["cached"] > 0
    assert total["written"] > 0


async def test_a_cached_content_is_charged_for_its_reading(tmp_path: Path) -> None:
    """What is read in for it is on the account once, and is a hit for who builds on it."""
    write_chat_tokenizer(tmp_path)
    content = {"contents": [{"parts": [{"text": "hello world alpha " * 6}]}]}
    async with keyed_gateway(EchoBackend(tmp_path)) as keyed:
        made = {"model": MODEL, **content}
        status, reply = await keyed.gateway.post("/v1beta/cachedContents", made, **bearer(ACME))
        assert status == 200, reply
        charged = await accounted(keyed)
        usage: Any = reply["usageMetadata"]
        assert charged["prompt"] == usage["totalTokenCount"] > 0
        assert charged["cached"] == charged["output"] == 0
        body = {"cachedContent": reply["name"], "contents": content["contents"]}
        found = await told(keyed, f"{GEMINI}:generateContent", body)
    assert found["cached"] > usage["totalTokenCount"] / 2
