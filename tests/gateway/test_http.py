"""Bodies, headers and errors below the level of any field."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from prefixcache.types import FinishReason
from tests.support.gateways import MODEL, Gateway, echo_backend, running_gateway
from tests.support.scripted import ScriptedBackend
from tests.support.tokenizers import write_piece_tokenizer

CHAT = "/v1/chat/completions"
BODY = b'{"model":"tiny","messages":[{"role":"user","content":"one"}],"max_tokens":4}'
FRESH = re.compile(r"req_[0-9a-f]{32}")


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(echo_backend(tmp_path), max_body_bytes=100_000) as running:
        yield running


async def raw(gateway: Gateway, *pieces: bytes, pause_seconds: float = 0.05) -> bytes:
    """Send bytes as they are and return all that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_seconds)
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


def head(*lines: str, length: int = len(BODY)) -> bytes:
    fixed = ("POST /v1/chat/completions HTTP/1.1", "Host: localhost", f"Content-Length: {length}")
    return "\r\n".join([*fixed, "Connection: close", *lines, "", ""]).encode("latin-1")


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model":"tiny","messages":[{"role":"user","content":"cut \ud83d emoji"}]}',
        rb'{"model":"tiny","messages":[{"role":"user","content":"\udc00"}]}',
        b'{"model":"tiny","messages":[{"role":"user","content":"\xff\xfe"}]}',
        b'{"model":"tiny","messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'{"model":"tiny","messages":' + b"[" * 50_000,
        b'{"model":"tiny","nested":' + b"[" * 50_000,
        b'{"model":"tiny","temperature":NaN,"messages":[]}',
        b'{"model":"tiny","temperature":1e999,"messages":[]}',
        b"",
        b"null",
        b"[]",
        b"{",
        b'"text"',
        b"\x00",
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_a_body_that_is_no_json_text_is_refused(
    gateway: Gateway, path: str, body: bytes
) -> None:
    """Half characters, wrong bytes and what is no JSON object are a 400, never a 500."""
    body = body.replace(b"messages", b"prompt") if path != CHAT else body
    async with gateway.http.post(gateway.url + path, data=body) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["type"] == "invalid_request_error"


async def test_a_body_that_says_it_is_too_long_is_not_read(gateway: Gateway) -> None:
    """A declared length over the limit is a 413 at once, with nothing of the body sent."""
    answer = await raw(gateway, head(length=500_000_000))
    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"code":"body_too_large"' in answer


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_body_that_turns_out_too_long_is_refused(
    gateway: Gateway, compressed: bool
) -> None:
    """Without a declared length, or unpacked, the limit holds all the same."""
    data = b" " * 1_000_000

    async def chunks() -> AsyncIterator[bytes]:
        yield gzip.compress(data) if compressed else data

    headers = {"Content-Encoding": "gzip"} if compressed else {}
    async with gateway.http.post(
        gateway.url + CHAT, data=chunks(), headers=headers, compress=False
    ) as reply:
        assert reply.status == 413
        assert (await reply.json())["error"]["code"] == "body_too_large"


async def test_continue_is_said_only_to_what_will_be_read(gateway: Gateway) -> None:
    """Expect: 100-continue is judged by the declared size before the body is asked for."""
    refused, taken = await asyncio.gather(
        raw(gateway, head("Expect: 100-continue", length=500_000_000)),
        raw(gateway, head("Expect: 100-continue"), BODY),
    )
    assert refused.startswith(b"HTTP/1.1 413")
    assert taken.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


async def test_a_body_that_does_not_come_is_timed_out(tmp_path: Path) -> None:
    """A client that promises a body and sends none is told so and let go."""
    expectations = ((), ("Expect: 100-continue",))
    async with running_gateway(echo_backend(tmp_path), body_seconds=0.3) as gateway:
        answers = await asyncio.gather(*(raw(gateway, head(*lines)) for lines in expectations))
    for answer in answers:
        assert b"HTTP/1.1 408" in answer
        assert b'"code":"body_timeout"' in answer


async def test_a_connection_without_a_request_is_closed(tmp_path: Path) -> None:
    """Half a request head does not hold a connection for ever."""
    async with running_gateway(echo_backend(tmp_path), idle_seconds=0.2) as gateway:
        assert await raw(gateway, b"POST /v1/chat") == b""


async def test_a_refused_stream_is_plain_json_and_the_connection_goes_on(gateway: Gateway) -> None:
    """stream with n 0 is a 400 in JSON before any event; the next request is served after it."""
    bad = BODY.replace(b"}]", b'}],"stream":true,"n":0')
    keeping = head(length=len(bad)).replace(b"Connection: close\r\n", b"")
    answer = await raw(gateway, keeping + bad, head() + BODY)
    first, _, second = answer.partition(b"HTTP/1.1 200 OK")
    assert first.startswith(b"HTTP/1.1 400")
    assert b"Content-Type: application/json" in first
    assert b"data:" not in first
    assert b'"content":"one"' in second


async def test_an_unknown_expectation_is_refused(gateway: Gateway) -> None:
    """Expectations that we cannot meet are a 400."""
    assert (await raw(gateway, head("Expect: miracles"), BODY)).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("asked", ["abc-1.2_3", "A" * 128, "0d4b1c52-9d6e-4f7b-8a64-3a4b1c2d3e4f"])
async def test_a_safe_request_id_is_echoed(gateway: Gateway, asked: str) -> None:
    """A client finds its own id on the answer."""
    async with gateway.http.get(gateway.url + "/health", headers={"X-Request-Id": asked}) as reply:
        assert reply.headers["x-request-id"] == asked


@pytest.mark.parametrize(
    "asked",
    ["", "a\tb", "A" * 129, "é", '{"a":1}', "a%0d%0aSet-Cookie:x", "a b", "A" * 100_000],
)
async def test_an_unsafe_request_id_is_replaced(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, asked: str
) -> None:
    """Ids that are long or strange come back in no header and in no log line."""
    caplog.set_level(logging.DEBUG)
    answer = await raw(gateway, head(f"X-Request-Id: {asked}"), BODY)
    (echoed,) = re.findall(rb"x-request-id: (.*)\r\n", answer, re.IGNORECASE)
    assert FRESH.fullmatch(echoed.decode())
    assert re.match(rb"HTTP/1\.[01] (200|400)", answer)
    ours = [record for record in caplog.records if record.name.startswith("gateway")]
    assert ours
    for record in ours:
        assert "\n" not in record.getMessage()
        assert len(record.getMessage()) < 500
        assert record.exc_info is None


async def test_what_is_no_http_gets_the_envelope_too(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    """Garbage on the port is answered with our kind of 400 and one quiet log line."""
    answer = await raw(gateway, b"\x16\x03\x01 secret garbage\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 400")  # what it is not, it is not in 1.1 either
    assert b'"type":"invalid_request_error"' in answer
    assert b"X-Request-Id: req_" in answer
    assert "secret" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_every_answer_has_a_request_id(gateway: Gateway) -> None:
    """Good answers, streams and errors all carry x-request-id."""
    body = {"model": MODEL, "prompt": "one", "stream": True}
    answers: list[tuple[str, str, Any]] = [
        ("GET", "/health", None),
        ("GET", "/nowhere", None),
        ("GET", CHAT, None),
        ("POST", CHAT, {}),
        ("POST", "/v1/completions", body),
    ]
    for method, path, sent in answers:
        async with gateway.http.request(method, gateway.url + path, json=sent) as reply:
            assert FRESH.fullmatch(reply.headers["x-request-id"])


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", CHAT, 405)]
)
async def test_unknown_routes_and_methods_get_the_envelope(
    gateway: Gateway, method: str, path: str, status: int
) -> None:
    """Also what no handler sees is answered in OpenAI's form."""
    async with gateway.http.request(method, gateway.url + path) as reply:
        assert reply.status == status
        assert (await reply.json())["error"]["type"] == "invalid_request_error"
        assert (status == 405) == ("Allow" in reply.headers)


async def test_two_requests_with_one_id_do_not_mix(tmp_path: Path) -> None:
    """The client's id is never an id inside; cancelling one of two leaves the other."""
    async with running_gateway(echo_backend(tmp_path, seconds_per_token=0.01)) as gateway:

        async def text_of(prompt: str) -> str:
            stream = await gateway.openai.completions.create(
                model=MODEL,
                prompt=prompt,
                max_tokens=30,
                stream=True,
                extra_body={"request_id": "same-id", "ignore_eos": True},
                extra_headers={"X-Request-Id": "same-id"},
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        first, second, third = (asyncio.create_task(text_of(p)) for p in ("one", " two", " three"))
        await asyncio.sleep(0.1)
        third.cancel()
        assert await first == "one" * 30
        assert await second == " two" * 30


async def test_our_own_faults_show_nothing_of_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error is a plain 500; its text goes to the log alone."""
    write_piece_tokenizer(tmp_path, [b"one"])
    async with running_gateway(ScriptedBackend(tmp_path, [])) as gateway:  # it has no script
        status, reply = await gateway.post(
            "/v1/completions", {"model": MODEL, "prompt": "one", "max_tokens": 1}
        )
        error: Any = reply["error"]
        assert (status, error["message"], error["code"]) == (
            500,
            "internal error",
            "internal_error",
        )
        assert "pop from empty list" in caplog.text


async def test_log_lines_hold_no_prompt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One line tells route, status, time, tokens and id, and nothing that was said."""
    caplog.set_level(logging.DEBUG, logger="gateway")
    write_piece_tokenizer(tmp_path, [b"one"])
    backend = ScriptedBackend(tmp_path, [["secret answer", FinishReason.STOP]])
    async with running_gateway(backend) as gateway:
        await gateway.post(
            CHAT,
            {"model": MODEL, "messages": [{"role": "user", "content": "secret prompt"}]},
            **{"X-Request-Id": "my-id"},
        )
    (line,) = [r.getMessage() for r in caplog.records if r.name == "gateway.requests"]
    assert re.fullmatch(
        r"POST /v1/chat/completions status=200 ms=[\d.]+ prompt=\d+ cached=0 tiers=- output=1"
        r" error=- tenant=default id=my-id",
        line,
    )
    assert "secret" not in " ".join(r.getMessage() for r in caplog.records if "gateway" in r.name)


@pytest.mark.parametrize("salt", ["secret salt", "secret/salt", "secret" * 100, ["secret"]])
async def test_log_lines_hold_no_salt(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, salt: object
) -> None:
    """Neither a salt that is used nor one that is refused is in any line."""
    caplog.set_level(logging.DEBUG)
    status, _ = await gateway.post(CHAT, json.loads(BODY) | {"cache_salt": salt})
    assert status == (200 if salt == "secret salt" else 400)
    assert any(record.name == "gateway.requests" for record in caplog.records)
    assert "secret" not in caplog.text
