"""A trace against a live server: what is sent, what is foretold, what is refused."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.cli import main
from gateway.client.prompts import WORDS
from prefixcache.traces import Agentic, Arrivals, MultiTurn, SharedPrefix, Workload, mooncake_line
from tests.support.architectures import VOCAB_SIZE
from tests.support.models import write_tiny_model
from tests.support.servers import Server, running_server
from tests.support.tokenizers import write_piece_tokenizer
from tests.support.traces import write_lines

BLOCK = 32
QUIET = ("--log-level", "warning")
REPLAY = ("--format", "mooncake", "--trace-block-tokens", str(BLOCK))


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without a model, to which each word is a token."""
    folder = tmp_path_factory.mktemp("echo")
    write_piece_tokenizer(folder, [word.encode() for word in WORDS])
    with running_server([*QUIET, "--backend", "echo", "--model", str(folder)]) as server:
        yield server


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a real engine, a tiny model and a pool of few blocks."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    n_words = min(len(WORDS), VOCAB_SIZE - 260)
    write_piece_tokenizer(folder, [word.encode() for word in WORDS[:n_words]])
    arguments = [*QUIET, "--model", str(folder), "--threads", "1", "--kv-memory", "256KiB"]
    with running_server([*arguments, "--weights", "float32"]) as server:
        yield server


def write(folder: Path, workload: Workload) -> str:
    file = folder / "made.jsonl"
    file.write_bytes(b"".join(map(mooncake_line, workload.generate())))
    return str(file)


def replay(*arguments: str, server: Server, json_file: Path) -> dict[str, Any]:
    command = ["replay", *arguments, "--against", server.url, "--json", str(json_file)]
    with pytest.raises(SystemExit) as end:
        main(command)
    assert not end.value.code
    found: dict[str, Any] = json.loads(json_file.read_text(encoding="utf-8"))
    return found


def figures(found: dict[str, Any], name: str) -> list[Any]:
    return [each[name] for each in found["requests"]]


def test_a_real_engine_has_what_was_foretold(tiny: Server, tmp_path: Path) -> None:
    """One after another, each request has as many cached tokens as foretold, with evictions."""
    agents = Agentic(
        requests=24,
        seed=5,
        block_tokens=BLOCK,
        spread=0.3,
        steps=4,
        shared_tokens=70,
        task_tokens=30,
        result_tokens=30,
        output_tokens=12,
        branches=2,
        branch_tokens=10,
    )
    trace = write(tmp_path, agents)
    one = ("--concurrency", "1")
    found = replay(trace, *REPLAY, *one, server=tiny, json_file=tmp_path / "a.json")
    assert found["answered"] == found["rows"]["sent"] == 24
    assert figures(found, "prompt_tokens") == figures(found, "asked_input_tokens")
    assert figures(found, "completion_tokens") == figures(found, "asked_output_tokens")
    assert figures(found, "cached_tokens") == figures(found, "predicted_cached_tokens")
    cache = found["server_cache"]
    assert (cache["source"], cache["block_tokens"]) == ("server", 16)
    n_blocks = sum(figures(found, "prompt_tokens")) - sum(figures(found, "cached_tokens"))
    assert n_blocks / 16 > cache["capacity_blocks"] > 0, "nothing had to be given up"
    assert found["cached"]["server_tokens"] > 0
