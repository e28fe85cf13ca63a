"""Measuring the gateway's own cost: its load, its plain counterpart and its command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from gateway.client.load import Exchange, load, parts_of, quantile, request_bytes
from gateway.client.plain_server import PATH, Answers, make_plain_app
from gateway.client.streaming import BenchError
from tests.support.tokenizers import write_chat_tokenizer

EVENTS = (b"data: one\n\n", b"data: two\n\n", b"data: [DONE]\n\n")
ANSWERS = Answers(b'{"text":"one two"}', EVENTS)
WHOLE, STREAMED = b'{"stream":false}', b'{"stream":true}'


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Where the plain handler answers."""
    runner = web.AppRunner(make_plain_app(ANSWERS), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}"
    await runner.cleanup()


def asked(url: str, body: bytes, path: str = PATH) -> bytes:
    return request_bytes(url, path, body, key="k")


async def test_a_connection_carries_one_answer_after_the_other(url: str) -> None:
    """Whole and in chunks, each answer is read to its end and no further."""
    exchange = await Exchange.open(url)
    for _ in range(2):
        assert parts_of(await exchange.ask(asked(url, WHOLE))) == [ANSWERS.whole]
        assert parts_of(await exchange.ask(asked(url, STREAMED))) == list(EVENTS)
    exchange.close()


async def test_a_refusal_is_no_answer(url: str) -> None:
    """What is not 200 ends a measurement, with what the server said."""
    exchange = await Exchange.open(url)
    with pytest.raises(BenchError, match="404 Not Found"):
        await exchange.ask(asked(url, WHOLE, "/nowhere"))
    with pytest.raises(BenchError, match="404 Not Found"):
        await load(url, asked(url, WHOLE, "/nowhere"), at_once=2, seconds=0.1)
    exchange.close()


async def test_a_load_counts_every_answer(url: str) -> None:
    """Even where the time is too short for any answer, as many come as were asked for at once."""
    found = await load(url, asked(url, STREAMED), at_once=3, seconds=1e-9)
    assert len(found.durations) == 3
    assert found.durations == tuple(sorted(found.durations))
    assert found.per_second == 3 / found.seconds


async def test_a_load_lasts_until_its_last_answer(url: str) -> None:
    """What runs when the time is over counts, with the time that it takes."""
    found = await load(url, asked(url, STREAMED), at_once=3, seconds=0.05)
    assert found.seconds > 0.05
    assert len(found.durations) > 3


def test_a_quantile_is_one_of_the_values() -> None:
    """The smallest that so large a part does not exceed."""
    values = [float(n) for n in range(1, 101)]
    assert [quantile(values, part) for part in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]


@pytest.mark.skipif(len(psutil.Process().cpu_affinity()) < 2, reason="needs two cores")
def test_the_command_measures_all_that_it_says(tmp_path: Path) -> None:
    """Small sizes: the gateway and the plain handler, open streams, and large prompts."""
    model = tmp_path / "echo"
    write_chat_tokenizer(model)
    file = tmp_path / "result.json"
    sizes = ("--at-once", "2", "--seconds", "0.1", "--repeats", "1")
    lengths = ("--tokens", "8", "--tokens", "150")  # more than the prompt has
    few = ("--streams", "10", "--large-seconds", "0.1", "--large-bytes", "100000")
    command = (sys.executable, "-m", "gateway.cli", "bench", "gateway", "--json", str(file))
    done = subprocess.run(
        [*command, *sizes, *lengths, *few, "--model", str(model)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text(encoding="utf-8"))
    rows = {(row["server"], row["is_streamed"], row["tokens"]): row for row in result["rows"]}
    assert set(rows) == set(product(("gateway", "plain"), (False, True), (8, 150)))
    assert all(row["requests_per_second"] > 0 for row in rows.values())
    assert [row["streams"] for row in result["open_streams"]] == [10]
    assert [row["large_prompts_answered"] for row in result["large_prompts"]] == [0, 4]
