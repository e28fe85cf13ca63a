"""What the manual's page on replays shows is what happens."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gateway.cli import main
from gateway.client.prompts import WORDS
from gateway.generate import generate
from gateway.replay import replay_command
from prefixcache.traces import FORMATS, read_trace
from tests.support.servers import Server, running_server
from tests.support.tokenizers import write_piece_tokenizer
from tests.support.traces import write_mooncake

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "gateway/manual/replay.md").read_text(encoding="utf-8")
RESULT = json.loads((ROOT / "examples/results/replay.json").read_text(encoding="utf-8"))
SERVER = "http://127.0.0.1:8000"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(PAGE) if found == language]


def test_figures_are_the_committed_ones() -> None:
    """Every row of the table shows what the result file holds, to the digit."""
    assert f"`{RESULT['command']}`" in PAGE
    found = {
        (row["trace"].removesuffix("_trace.jsonl"), row["capacity_blocks"], row["policy"]): row
        for row in RESULT["results"]
    }
    rows = re.findall(r"^\| (\w+) \| ([\d,]+|unlimited) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 9
    for trace, limit, cells in rows:
        capacity = None if limit == "unlimited" else int(limit.replace(",", ""))
        for policy, shown in zip(("lru", "cost-aware", "belady"), cells.split(" | "), strict=True):
            rate = found[trace, capacity, policy]["hit_rate"]["by_token"]
            assert shown == f"{100 * rate:.2f}"


def test_rates_by_each_definition_are_the_committed_ones() -> None:
    """Those of the conversation trace with room for all."""
    rates = next(row["hit_rate"] for row in RESULT["results"] if row["capacity_blocks"] is None)
    shown = re.findall(r"^\| (?:by \w+|per request) \| .* \| (\.\d{4}) \|$", PAGE, re.MULTILINE)
    names = ("by_token", "by_block", "mean_per_request")
    assert shown == [f"{rates[name]:.4f}".lstrip("0") for name in names]


def test_figures_of_the_live_replay_are_the_committed_ones() -> None:
    """What was cached, what was foretold, and that no request differed."""
    result = json.loads((ROOT / "examples/results/replay_live.json").read_text(encoding="utf-8"))
    cached = result["cached"]
    assert f"{cached['server_tokens']:,} of {cached['prompt_tokens']:,} prompt tokens" in PAGE
    assert cached["equal"] == cached["requests"] == result["rows"]["sent"]
    assert cached["server_tokens"] == cached["predicted_tokens"]


def test_figures_of_the_sampled_curve_are_the_committed_ones() -> None:
    """How much it read, what that took, and the command."""
    result = json.loads((ROOT / "examples/results/sampled_curve.json").read_text(encoding="utf-8"))
    page = " ".join(PAGE.split())
    seconds, peak = result["seconds"], result["peak_mib"]
    assert f"`{result['command']}`" in page
    assert f"{result['blocks']:,} blocks in {result['requests']:,} made-up requests" in page
    assert f"{seconds['curve']} seconds of CPU time" in page
    assert f"{result['microseconds_per_block']} microseconds a block" in page
    assert f"from {peak['before']} to {peak['after']} MiB" in page
    assert f"making the trace took {seconds['making_the_trace']} seconds" in page


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without a model, to send traces to."""
    folder = tmp_path_factory.mktemp("echo")
    write_piece_tokenizer(folder, [word.encode() for word in WORDS])
    arguments = ["--log-level", "warning", "--backend", "echo", "--model", str(folder)]
    with running_server(arguments) as running:
        yield running


@pytest.mark.parametrize("command", blocks("bash"))
def test_commands_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """On traces of those names; what is sent goes to a server of this test's."""
    monkeypatch.chdir(tmp_path)
    for name in ("conversation_trace.jsonl", "talk.jsonl"):
        write_mooncake(Path(name), (1, 2), (1, 3))
    if SERVER in command:
        command = command.replace(SERVER, request.getfixturevalue("server").url)
    program, *arguments = shlex.split(command)
    assert program == "prefixcache"
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert not left.value.code


def test_every_workload_and_its_options_are_there() -> None:
    """By their names."""
    for name, command in generate.commands.items():
        assert f"`{name}`" in PAGE
        for parameter in command.params:
            assert parameter.opts[0] in PAGE


def test_the_recording_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And can be replayed."""
    monkeypatch.chdir(tmp_path)
    (program,) = blocks("python")
    exec(program, {})  # noqa: S102 (the manual's own)
    (request,) = read_trace("recording.jsonl")
    assert (request.input_tokens, request.cached_tokens, len(request.hash_ids)) == (70, 64, 4)


def test_every_format_and_option_is_there() -> None:
    """By its name."""
    for name in FORMATS:
        assert f"`{name}`" in PAGE
    told = {"--format", "--idle-ttl", "--protected-share", "--seed", "--trace-block-tokens"}
    for parameter in replay_command.params:
        if isinstance(parameter, click.Option):
            (name,) = parameter.opts
            assert name in PAGE or name in told
