"""`prefixcache bench serve` as a user runs it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from gateway.cli import main
from gateway.client.prompts import WORDS
from tests.support.tokenizers import write_piece_tokenizer

COMMAND = (sys.executable, "-m", "gateway.cli", "bench", "serve")


@pytest.fixture
def own(tmp_path: Path) -> tuple[str, ...]:
    """The flags that have a server of ours echo."""
    write_piece_tokenizer(tmp_path / "echo", [word.encode() for word in WORDS])
    return ("--own", "--own-options", f"--backend echo --model {tmp_path / 'echo'}")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_server_of_our_own_is_measured(own: tuple[str, ...], tmp_path: Path) -> None:
    """A table on standard output; the file holds machine, command, server and raw values."""
    file = tmp_path / "result.json"
    sizes = ("--scenario", "cold,cached", "--prefix", "64", "--repeats", "2")
    done = run(*own, *sizes, "--json", str(file))
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["scenario", "figure", "own", "cached"]
    assert [line.split()[:2] for line in lines] == [["cold", "64"], ["cached", "64"]]
    assert re.search(r"^own: http://\S+ is prefixcache .*process \d+: ", done.stderr, re.MULTILINE)
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["command"].startswith("prefixcache bench serve --own")
    assert result["machine"]["versions"]["prefixcache"]
    (server,) = result["servers"]
    assert (server["kind"], server["model"]) == ("prefixcache", "echo")
    assert [run["is_warm_up"] for run in result["runs"]] == [*(True,) * 2, *(False,) * 4]
    assert {request["prompt_tokens"] for request in result["runs"][0]["requests"]} == {64}
    assert result["runs"][0]["work"]["server_cpu_seconds"] >= 0
    assert result["rows"][1]["cached_tokens"] == {"own": 64}


def test_a_quick_run_tries_small_sizes(own: tuple[str, ...], tmp_path: Path) -> None:
    """--quick sends less than the sizes that figures are made with, and the file says so."""
    file = tmp_path / "result.json"
    arguments = ("--quick", "--scenario", "tenants", "--warm-ups", "0", "--repeats", "1")
    done = run(*own, *arguments, "--json", str(file))
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["sizes"]["tenant_requests"] == len(result["runs"][0]["requests"]) < 64


def test_sigterm_leaves_no_process_behind(own: tuple[str, ...]) -> None:
    """A measurement that is stopped takes the server that it started with it."""
    arguments = (*own, "--scenario", "cold", "--prefix", "64", "--repeats", "1000000")
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert any(line.startswith("turn ") for line in process.stderr)
        started = psutil.Process(process.pid).children(recursive=True)
        assert started
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 128 + signal.SIGTERM
        assert not [child for child in started if child.is_running()]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("ftp://127.0.0.1:1",),
        ("http://",),
        ("http://127.0.0.1:99999",),
        ("--url", "http://127.0.0.1:1"),
        ("--url", "a=http://127.0.0.1:1", "--url", "a=http://127.0.0.1:2"),
        ("--url", "own=http://127.0.0.1:1", "--own"),
        ("http://127.0.0.1:1", "--pid", "b=1"),
        ("--url", "a=http://127.0.0.1:1", "--pid", "a=x"),
        ("http://127.0.0.1:1", "--own-options", "--threads 1"),
        ("--own", "--own-options", "'"),
        ("--own", "--scenario", "cold,hot"),
        ("--own", "--prefix", "0"),
        ("--own", "--prefix", "many"),
        ("--own", "--prefix", "64,"),
        ("--own", "--repeats", "0"),
        ("--own", "--json"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever is wrong with the command line is one line on standard error."""
    with pytest.raises(SystemExit) as end:
        main(["bench", "serve", *arguments])
    assert end.value.code == 2
    output, complaint = capsys.readouterr()
    assert output == ""
    assert re.fullmatch(r"prefixcache: [^\n]+\n", complaint)


def test_a_server_that_is_not_there_is_one_line_and_code_1() -> None:
    """What is right as input and cannot be measured is another code."""
    done = run("http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"prefixcache: nothing listens at http://127.0.0.1:1\n", done.stderr)


def test_help_ends_with_an_example() -> None:
    """Help says what is measured and how it is used."""
    done = run("--help")
    assert done.returncode == 0
    assert re.search(r"Example: prefixcache bench serve [^\n]+\n\Z", done.stdout)
