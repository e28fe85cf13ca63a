"""What operators set around a server: its log, traces, recordings and TLS."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.app import make_app
from gateway.config import GatewayConfig
from gateway.request_log import JsonFormatter, JsonLine
from gateway.server import open_listener, url_of
from gateway.tls import tls_context
from gateway.tracing import NoTracing, tracer_for
from gateway.tracing_otel import OtelTracer
from prefixcache.errors import ConfigError
from prefixcache.traces import read_trace
from tests.support.bodies import TEXT
from tests.support.gateways import MODEL, Gateway, echo_backend, running_gateway

SECRET = "one two three"
TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Lines(logging.Handler):
    """Keeps what is logged, as JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


async def test_the_log_as_json_has_fixed_fields_and_no_prompts(gateway: Gateway) -> None:
    """A request is one object of the same fields as any line; nothing that was said is in it."""
    lines, log = Lines(), logging.getLogger("gateway.requests")
    log.addHandler(lines)
    level = log.level
    log.setLevel(logging.INFO)
    try:
        await gateway.post(TEXT, {"model": MODEL, "prompt": SECRET}, **{"X-Request-Id": "mine"})
        log.warning("something\nelse")
    finally:
        log.removeHandler(lines)
        log.setLevel(level)
    request, other = map(json.loads, lines.texts)
    assert list(request) == list(other) == list(JsonLine.__struct_fields__)
    assert (request["method"], request["route"], request["status"]) == ("POST", TEXT, 200)
    assert (request["prompt_tokens"], request["output_tokens"]) == (3, 3)
    assert (request["request_id"], request["tenant"]) == ("mine", "default")
    assert (other["message"], other["level"], other["route"]) == (
        "something\nelse",
        "warning",
        None,
    )
    assert "two" not in lines.texts[0]
    assert not any("\n" in text for text in lines.texts)


def test_an_exception_is_told_on_the_same_line() -> None:
    """Its traceback is a field."""
    try:
        raise KeyError("x")
    except KeyError:
        record = logging.LogRecord("a", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    text = JsonFormatter().format(record)
    assert "KeyError" in json.loads(text)["exception"]
    assert "\n" not in text


async def test_a_request_is_a_span_of_the_trace_it_names(gateway: Gateway) -> None:
    """Its parent is traceparent's; it has tokens, tenant and first token, and no text."""
    exporter = InMemorySpanExporter()
    gateway.service.tracer = OtelTracer(SimpleSpanProcessor(exporter))
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
    await gateway.post(TEXT, {"model": MODEL, "prompt": SECRET}, **headers)
    await gateway.post(TEXT, {"model": MODEL}, **headers)
    good, bad = exporter.get_finished_spans()
    said: Any = good.attributes
    assert good.name == f"POST {TEXT}"
    assert good.parent is not None
    assert (f"{good.context.trace_id:032x}", f"{good.parent.span_id:016x}") == (TRACE_ID, PARENT_ID)
    assert said["gen_ai.usage.input_tokens"] == said["gen_ai.usage.output_tokens"] == 3
    assert (said["prefixcache.tenant"], said["gen_ai.request.model"]) == ("default", MODEL)
    assert said["prefixcache.cached_tokens"] == 0
    assert said["prefixcache.time_to_first_token_seconds"] >= 0
    assert [event.name for event in good.events] == ["first token"]
    assert good.start_time is not None
    assert good.end_time is not None
    assert good.start_time <= good.events[0].timestamp <= good.end_time
    assert "two" not in good.to_json()
    other: Any = bad.attributes
    assert other["http.response.status_code"] == 400
    assert "prefixcache.time_to_first_token_seconds" not in other


async def test_probes_make_no_spans(gateway: Gateway) -> None:
    """What is asked every few seconds is not traced."""
    exporter = InMemorySpanExporter()
    gateway.service.tracer = OtelTracer(SimpleSpanProcessor(exporter))
    await gateway.get("/health")
    await gateway.counters()
    assert exporter.get_finished_spans() == ()


def test_tracing_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off without the setting; with it, and without the packages, the error says what to do."""
    assert isinstance(tracer_for(None), NoTracing)
    monkeypatch.delitem(sys.modules, "gateway.tracing_otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"prefixcache\[otel\]"):
        tracer_for("http://127.0.0.1:4318/v1/traces")


async def test_a_recording_replays_to_the_rate_that_was_reported(tmp_path: Path) -> None:
    """Blocks that requests found cached are found by a replay as well; text is nowhere."""
    path = tmp_path / "recorded.jsonl"
    prompts = [*("one two three" * 16 + "one",) * 2, *("one two three" * 11,) * 2]
    async with running_gateway(echo_backend(tmp_path), record_file=str(path)) as gateway:
        for prompt in prompts:
            status, _ = await gateway.post(TEXT, {"model": MODEL, "prompt": prompt})
            assert status == 200
        await gateway.post(TEXT, {"model": MODEL, "prompt": ""})
        counters = await gateway.counters()
    requests = list(read_trace(path))
    assert len(requests) == len(prompts)
    n_prompt = counters["prefixcache_prompt_tokens_total"]
    assert sum(request.input_tokens for request in requests) == n_prompt
    cached = sum(request.cached_tokens or 0 for request in requests)
    assert cached == counters["prefixcache_cached_tokens_total"] > 0
    assert "two" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "gateway.cli", "replay", str(path), "--json", str(report)]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    (result, *_) = json.loads(report.read_text())["results"]
    assert (result["tokens"], result["hit_tokens"]) == (n_prompt, cached) == (164, 112)


async def test_salts_part_what_is_recorded(tmp_path: Path) -> None:
    """Equal prompts with different salts share no id, as they share no cache."""
    path = tmp_path / "recorded.jsonl"
    async with running_gateway(echo_backend(tmp_path), record_file=str(path)) as gateway:
        for salt in ("YQ==", "Yg==", "YQ=="):
            body = {"model": MODEL, "prompt": "one two three" * 8, "cache_salt": salt}
            assert (await gateway.post(TEXT, body))[0] == 200
    first, second, third = read_trace(path)
    assert first.hash_ids == third.hash_ids
    assert not set(first.hash_ids) & set(second.hash_ids)


async def test_recording_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A thread writes, in the order in which requests ended; the end of the server waits for it."""
    path, free = tmp_path / "recorded.jsonl", threading.Event()
    prompts = ["one" * n for n in (7, 3, 5)]
    async with running_gateway(
        echo_backend(tmp_path), record_file=str(path), record_text=True
    ) as gateway:
        tokenizer = gateway.service.served().encoder.tokenizer
        decode = tokenizer.decode

        def slow(ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
            assert free.wait(60)
            return decode(ids, skip_special_tokens=skip_special_tokens)

        tokenizer.decode = slow  # type: ignore[method-assign]
        for prompt in prompts:
            body = {"model": MODEL, "prompt": prompt}
            assert (await gateway.post(TEXT, body))[0] == 200
        assert not (tmp_path / "recorded.jsonl.text.jsonl").read_text()
        free.set()
    lengths = [request.input_tokens for request in read_trace(path)]
    assert lengths == [7, 3, 5]


async def test_text_is_recorded_where_that_is_asked(tmp_path: Path) -> None:
    """It lies in a file of its own, which replays as a trace with text."""
    path = tmp_path / "recorded.jsonl"
    async with running_gateway(
        echo_backend(tmp_path), record_file=str(path), record_text=True
    ) as gateway:
        await gateway.post(TEXT, {"model": MODEL, "prompt": SECRET})
    (line,) = (tmp_path / "recorded.jsonl.text.jsonl").read_text().splitlines()
    assert json.loads(line)["messages"] == [{"role": "user", "content": SECRET}]


async def test_a_long_recording_is_put_aside(tmp_path: Path) -> None:
    """It is renamed, and the next one begins with a key of its own."""
    path = tmp_path / "recorded.jsonl"
    async with running_gateway(
        echo_backend(tmp_path), record_file=str(path), record_file_bytes=400
    ) as gateway:
        for _ in range(8):
            await gateway.post(TEXT, {"model": MODEL, "prompt": "one two three" * 8})
    old = (tmp_path / "recorded.jsonl.1").read_text().splitlines()
    new = path.read_text().splitlines()
    assert json.loads(old[0])["key_id"] != json.loads(new[0])["key_id"]
    assert len(path.read_bytes()) <= 400


async def test_a_recording_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    """The error names the setting."""
    place = str(tmp_path / "nowhere" / "file")
    with pytest.raises(ConfigError, match="record_file"):
        async with running_gateway(echo_backend(tmp_path), record_file=place):
            pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate of our own for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    pem, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", pem], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    return pem, key


async def test_a_server_with_a_certificate_speaks_tls(
    gateway: Gateway, certificate: tuple[str, str]
) -> None:
    """Clients that trust it are answered over TLS 1.2 and 1.3; plain HTTP is not answered."""
    pem, key = certificate
    config = GatewayConfig(port=0, tls_certificate=pem, tls_key=key)
    tls = tls_context(config)
    runner = web.AppRunner(make_app(gateway.service), handler_cancellation=True)
    await runner.setup()
    listener = await open_listener(runner, config, tls)
    url = url_of(listener, tls)
    assert url.startswith("https://127.0.0.1:")
    trusting = ssl.create_default_context(cafile=pem)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        trusting.minimum_version = trusting.maximum_version = version
        async with gateway.http.get(f"{url}/health", ssl=trusting) as reply:
            assert reply.status == 200
    with pytest.raises(aiohttp.ClientError):
        await gateway.http.get(f"{url.replace('https', 'http')}/health")
    assert tls is not None
    assert tls.minimum_version == ssl.TLSVersion.TLSv1_2
    listener.close()
    await runner.cleanup()


def test_a_certificate_that_cannot_be_used_is_told(certificate: tuple[str, str]) -> None:
    """Half of a pair, missing files and a wrong key are errors that name the setting."""
    pem, key = certificate
    with pytest.raises(ConfigError, match="go together"):
        GatewayConfig(tls_certificate=pem)
    with pytest.raises(ConfigError, match=r"tls_key.*cannot be read"):
        tls_context(GatewayConfig(tls_certificate=pem, tls_key=f"{key}.gone"))
    with pytest.raises(ConfigError, match=r"tls_certificate.*fits its key"):
        tls_context(GatewayConfig(tls_certificate=pem, tls_key=pem))
    assert tls_context(GatewayConfig()) is None
