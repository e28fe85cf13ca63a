"""A trace against a live server: what is sent, what is foretold, what is refused."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from gateway.client.live import live_session
from gateway.client.live_prompts import WordPrompts
from gateway.client.live_report import live_text
from gateway.client.live_server import ServerCache
from gateway.client.prompts import WORDS, Vocabulary
from gateway.replay_live import LiveOptions, replayed_against
from prefixcache.index import TOKEN_BYTES, common_prefix_tokens
from prefixcache.index.policies import PolicyOptions
from prefixcache.traces import (
    Agentic,
    MultiTurn,
    ReadOptions,
    TraceRequest,
    Workload,
    mooncake_line,
    open_trace,
)
from tests.support.architectures import VOCAB_SIZE
from tests.support.fake_server import fake_server
from tests.support.models import write_tiny_model
from tests.support.servers import Server, running_server
from tests.support.tokenizers import write_piece_tokenizer
from tests.support.traces import mooncake, write_lines
from tests.support.waiting import until

BLOCK = 32
QUIET = ("--log-level", "warning")
REPLAY = ("--format", "mooncake", "--trace-block-tokens", str(BLOCK))

ASKED = LiveOptions(
    against="",
    model=None,
    at_a_time=1,
    key_env=None,
    limit=None,
    max_prompt_tokens=None,
    server_block_tokens=None,
    server_capacity_blocks=None,
    policy="lru",
    policy_options=PolicyOptions(),
    request_seconds=60,
    seed=None,
)


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


def prompt_tokens(server: Server) -> float:
    """Return the prompt tokens that a server has seen."""
    text = urllib.request.urlopen(f"{server.url}/metrics").read().decode()  # noqa: S310 (ours)
    found = re.search(r"^prefixcache_prompt_tokens_total (\S+)$", text, re.MULTILINE)
    assert found
    return float(found[1])


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


def test_all_rows_are_sent_at_the_speed_that_is_asked_for(echo: Server, tmp_path: Path) -> None:
    """Without options that leave some out every row is sent, with the length that it says."""
    talk = MultiTurn(
        requests=8, seed=2, block_tokens=BLOCK, turns=8, system_tokens=64, output_tokens=1
    )
    pace = ("--speed", "1000000")
    found = replay(
        write(tmp_path, talk), *REPLAY, *pace, server=echo, json_file=tmp_path / "a.json"
    )
    assert found["timing"] == {"speed": 1e6, "max_gap_seconds": None}
    assert found["rows"]["sent"] == found["answered"] == 8
    assert found["rows"]["skipped"] == found["failed"] == 0
    assert figures(found, "prompt_tokens") == figures(found, "asked_input_tokens")


def test_equal_ids_are_equal_words(echo: Server, tmp_path: Path) -> None:
    """Requests that have blocks in common find them, and others find none."""
    rows = [mooncake(1, 2), mooncake(1, 3, at_ms=1), mooncake(4, 2, at_ms=2)]
    file = write_lines(tmp_path / "a.jsonl", *rows)
    one = ("--concurrency", "1")
    found = replay(str(file), *one, server=echo, json_file=tmp_path / "a.json")
    assert [tokens // 512 for tokens in figures(found, "cached_tokens")] == [0, 1, 0]
    assert figures(found, "prompt_tokens") == [1024] * 3


def test_rows_are_counted_by_what_became_of_them(
    echo: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that cannot be used, are too long, empty or beyond the limit are not sent, but told."""
    rows = [
        mooncake(1, at_ms=500),
        mooncake(2, at_ms=700),
        {**mooncake(5), "hash_ids": [5, 6], "timestamp": 900},
        mooncake(7, 8, at_ms=1100),
        mooncake(at_ms=1200),
        mooncake(9, at_ms=1300),
    ]
    file = write_lines(tmp_path / "a.jsonl", *rows)
    options = ("--limit", "2", "--max-prompt-tokens", "600", "--speed", "100")
    found = replay(str(file), *options, server=echo, json_file=tmp_path / "a.json")
    assert found["rows"] == {
        "read": 6,
        "unusable": 1,
        "beyond_limit": 1,
        "too_long": 1,
        "empty": 1,
        "sent": 2,
        "not_sent": 0,
        "skipped": 4,
    }
    output, told = capsys.readouterr()
    assert "line 3: skipped: its input of 512 tokens has 1 blocks of 512" in told
    assert output.startswith("6 rows read, 2 sent, 1 unusable, 1 beyond the limit, 1 too long")


def test_times_count_from_the_earliest_row_and_gaps_are_cut_before_they_shrink(
    echo: Server, tmp_path: Path
) -> None:
    """Rows out of order and a wall clock's zero are no wait; a gap of 600 s becomes 5 s / 100."""
    start = 1893456000000
    rows = [mooncake(at, at_ms=start + at) for at in (600_000, 0)]
    file = write_lines(tmp_path / "a.jsonl", *rows)
    pace = ("--speed", "100", "--max-gap", "5")
    found = replay(str(file), *pace, server=echo, json_file=tmp_path / "a.json")
    first, second = figures(found, "sent_at")
    assert first < second
    assert second >= 0.05
    assert found["seconds"]["all"] < 60


def test_texts_are_sent_as_they_are(echo: Server, tmp_path: Path) -> None:
    """A log of chats is sent as chats, with the tokens of the tokenizer that is named."""
    tokenizer = tmp_path / "tokenizer"
    write_piece_tokenizer(tokenizer, [word.encode() for word in WORDS])
    long = {"role": "user", "content": "Q time" + " year time" * 15}
    more = [long, {"role": "assistant", "content": " way"}, {"role": "user", "content": " day"}]
    rows = [{"messages": messages, "output_length": 3} for messages in ([long], more)]
    file = write_lines(tmp_path / "a.jsonl", *rows)
    options = ("--concurrency", "1", "--tokenizer", str(tokenizer))
    found = replay(str(file), *options, server=echo, json_file=tmp_path / "a.json")
    assert figures(found, "prompt_tokens") == [32, 34]
    assert figures(found, "cached_tokens") == figures(found, "predicted_cached_tokens") == [0, 32]
    assert found["seed"] is None


def test_what_fails_is_counted(echo: Server, tmp_path: Path) -> None:
    """A prompt that the server refuses fails alone, with the server's reason."""
    file = write_lines(tmp_path / "a.jsonl", mooncake(*range(8)), mooncake(9, at_ms=1))
    found = replay(str(file), server=echo, json_file=tmp_path / "a.json")
    assert (found["answered"], found["failed"]) == (1, 1)
    (reason,) = found["reasons"]
    assert "answered 400" in reason
    assert len(reason) <= 200


def test_a_seed_makes_the_same_prompts_again() -> None:
    """Equal seeds give equal words, others others; ids in common give so many words in common."""
    vocabulary = Vocabulary(WORDS, 1)
    first, second = (
        TraceRequest(0.0, 3 * BLOCK - 2, 1, ids, BLOCK) for ids in ((7, 8, 9), (7, 8, 10))
    )
    prompt = WordPrompts(vocabulary, 1).prompt(first, 0)
    assert prompt == WordPrompts(vocabulary, 1).prompt(first, 5)
    assert prompt != WordPrompts(vocabulary, 2).prompt(first, 0)
    assert prompt.expected_tokens == len(prompt.tokens) // TOKEN_BYTES == first.input_tokens
    other = WordPrompts(vocabulary, 1).prompt(second, 1)
    n_common = common_prefix_tokens(prompt.tokens, 0, other.tokens, 0)
    assert 1 + 2 * BLOCK <= n_common < 2 * BLOCK + 6


def test_what_has_no_ids_shares_nothing() -> None:
    """The words after the last id are each request's own."""
    prompts = WordPrompts(Vocabulary(WORDS, 0), 1)
    first, second = (
        prompts.prompt(TraceRequest(0.0, 40, 1, (), BLOCK), number) for number in (0, 1)
    )
    assert first.expected_tokens == second.expected_tokens == 40
    assert common_prefix_tokens(first.tokens, 0, second.tokens, 0) < 4


def test_prompts_are_fresh_unless_a_seed_is_given(echo: Server, tmp_path: Path) -> None:
    """The report says with which seed the same ones can be sent again."""
    file = write_lines(tmp_path / "a.jsonl", mooncake(1))

    def seed(*options: str) -> int:
        found = replay(str(file), *options, server=echo, json_file=tmp_path / "a.json")
        return int(found["seed"])

    assert seed("--seed", "0") == 0
    assert seed() != seed()


async def test_ctrl_c_ends_with_what_was_measured(echo: Server, tmp_path: Path) -> None:
    """The report comes at once, the code is that of an interrupt, and no process is left."""
    rows = [mooncake(1), mooncake(2, at_ms=3_600_000)]
    file, json_file = write_lines(tmp_path / "a.jsonl", *rows), tmp_path / "a.json"
    command = [sys.executable, "-m", "gateway.cli", "replay", str(file), "--against", echo.url]
    before = prompt_tokens(echo)
    process = subprocess.Popen(  # noqa: ASYNC220 (nothing else runs here)
        [*command, "--json", str(json_file)], stdout=subprocess.PIPE, text=True
    )
    try:
        await until(lambda: prompt_tokens(echo) >= before + 512, seconds=60)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGINT
        assert re.match(r"2 rows read, 1 sent, 1 not sent; [01] answered, 0 failed, inter", output)
        assert json.loads(json_file.read_text(encoding="utf-8"))["interrupted"]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--speed", "0"),
        ("--speed", "-1"),
        ("--speed", "inf"),
        ("--speed", "nan"),
        ("--max-gap", "0"),
        ("--concurrency", "0"),
        ("--concurrency", "1", "--speed", "2"),
        ("--capacity", "10"),
        ("--why",),
        ("--html", "x.html"),
        ("--policy", "lru,fifo"),
        ("--limit", "0"),
        ("--api-key-env", "NO_SUCH_VARIABLE_IS_SET"),
        ("--max-prompt-tokens", "3"),
        ("--strict",),
        ("a.jsonl",),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line on standard error and code 2; nobody listens where it would be sent."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "a.jsonl", mooncake(1), {**mooncake(2), "timestamp": "12"})
    with pytest.raises(SystemExit) as end:
        main(["replay", "a.jsonl", "--against", "http://127.0.0.1:1", *arguments])
    assert end.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("prefixcache: ")


def test_options_of_a_server_need_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --against they are refused, not passed over."""
    file = write_lines(tmp_path / "a.jsonl", mooncake(1))
    with pytest.raises(SystemExit) as end:
        main(["replay", str(file), "--limit", "3"])
    assert end.value.code == 2
    assert capsys.readouterr().err == "prefixcache: --limit goes with --against\n"


def test_a_server_that_is_not_there_is_one_line_and_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is right as input and cannot be sent is another code."""
    file = write_lines(tmp_path / "a.jsonl", mooncake(1))
    with pytest.raises(SystemExit) as end:
        main(["replay", str(file), "--against", "http://127.0.0.1:1"])
    assert end.value.code == 1
    assert capsys.readouterr().err == "prefixcache: nothing listens at http://127.0.0.1:1\n"


async def test_the_key_is_sent_and_not_shown() -> None:
    """It is the text of the variable that is named."""
    asked = replace(ASKED, key_env="A_KEY")
    assert asked.key({"A_KEY": "secret"}) == "secret"
    async with live_session("secret", 1) as session:
        assert session.headers["Authorization"] == "Bearer secret"


async def test_a_server_of_no_known_kind_is_taken(tmp_path: Path) -> None:
    """Whatever lists models and streams completions is replayed against; it may tell less."""
    event = b'data: {"choices":[{"text":"a","finish_reason":"length"}],'
    usage = b'"usage":{"prompt_tokens":%d,"completion_tokens":1}}\n\n' % 512
    file = write_lines(tmp_path / "a.jsonl", {"timestamp": 0, "input": "a"})
    options = ReadOptions(sort=True, keep_prompts=True)
    cards = {"/v1/models": {"data": [{"id": "m", "owned_by": "somebody"}]}}
    async with fake_server(cards, event + usage) as url:
        trace = open_trace(str(file), options=options)
        result = await replayed_against(trace, replace(ASKED, against=f"{url}/v1"), lambda _: None)
    ((_, answer),) = result.answered
    assert (answer.prompt_tokens, answer.cached_tokens) == (512, None)
    assert result.cache == ServerCache(16, None, "assumed")
    assert "the server tells none" in live_text(result)
