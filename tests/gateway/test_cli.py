"""The command as a user runs it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

from gateway.cli import main
from tests.support.models import write_tiny_model
from tests.support.tokenizers import write_piece_tokenizer

COMMAND = (sys.executable, "-m", "gateway.cli")
READY = re.compile(r"ready (http://127\.0\.0\.1:\d+)\n")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs what ends by itself in this process; gives its code, output and errors."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # else the command sets how long to spin

    def run_here(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run_here


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `serve` and give the process and the URL it announces."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = READY.fullmatch(process.stdout.readline())
        assert found, process.communicate(timeout=10)
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def model(tmp_path: Path) -> str:
    write_piece_tokenizer(tmp_path / "tiny", [b"one", b" two"])
    return str(tmp_path / "tiny")


def test_serve_answers_and_ends_cleanly(model: str) -> None:
    """One line on standard output when it answers; SIGTERM ends it with code 0."""
    with serving("--backend", "echo", "--model", model) as (process, url):
        with urllib.request.urlopen(f"{url}/ready") as reply:  # noqa: S310
            assert reply.status == 200
        body = {"model": "tiny", "messages": [{"role": "user", "content": "one two"}]}
        request = urllib.request.Request(  # noqa: S310
            f"{url}/v1/chat/completions", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request) as reply:  # noqa: S310
            content = json.load(reply)["choices"][0]["message"]["content"]
        assert content == "one two"
        process.send_signal(signal.SIGTERM)
        output, log = process.communicate(timeout=10)
    assert process.returncode == 0
    assert output == ""
    assert "POST /v1/chat/completions status=200" in log
    assert "one two" not in log
    assert "Traceback" not in log


def test_an_interrupt_ends_it_too(model: str) -> None:
    """Ctrl-C drains and exits with code 0."""
    with serving("--backend", "echo", "--model", model) as (process, _):
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "Traceback" not in log


def test_a_stop_does_not_wait_for_a_prompt_that_is_being_read(model: str) -> None:
    """SIGTERM ends the process in time though a template still runs, for a client that waits."""
    slow = "{% for i in range(9999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    (Path(model) / "chat_template.jinja").write_text(slow, encoding="utf-8")
    arguments = ("--backend", "echo", "--model", model, "--drain-seconds", "0.5")
    with serving(*arguments) as (process, url):
        body = b'{"model":"tiny","messages":[{"role":"user","content":"x"}]}'
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        )
        waiting = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        waiting.sendall(head % len(body) + body)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=12)
        waiting.close()
    assert process.returncode == 0


def test_flags_win_over_the_file(model: str, tmp_path: Path) -> None:
    """A setting in both places has the flag's value."""
    config = tmp_path / "config.toml"
    config.write_text('[server]\nserved_model_name = "file"\nmax_choices = 1\n', encoding="utf-8")
    arguments = ("--config", str(config), "--served-model-name", "flag")
    with (
        serving("--backend", "echo", "--model", model, *arguments) as (_, url),
        urllib.request.urlopen(f"{url}/v1/models") as reply,  # noqa: S310
    ):
        listed = json.load(reply)
    assert [card["id"] for card in listed["data"]] == ["flag"]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("serve", "--nonsense"),
        ("serve", "extra"),
        ("serve", "--port", "x"),
        ("serve", "--port", "70000"),
        ("serve", "--host", "0.0.0.0"),  # noqa: S104
        ("serve", "--host", "example.org"),
        ("serve", "--config", "/nonexistent.toml"),
        ("serve", "--kv-memory", "lots"),
        ("serve", "--dtype", "int3"),
        ("serve", "--weights", "4bit"),
        ("serve", "--kv-format", "int3"),
        ("serve", "--kv-prune", "1024"),
        ("serve", "--kv-prune", "4+1024", "--invariant"),
        ("serve", "--threads", "0"),
        ("serve", "--drain-seconds", "-1"),
        ("serve", "--drain-seconds", "nan"),
        ("serve", "--served-model-name", ""),
        ("bench", "nonsense"),
        ("bench", "index", "--workload", "A,E"),
        ("bench", "index", "--workload", ""),
        ("bench", "index", "--repeats", "0"),
        ("bench", "attention", "--prefix", "100"),
        ("bench", "attention", "--prefix", "0"),
        ("bench", "attention", "--streams", "0"),
        ("bench", "attention", "--new", "x"),
        ("bench", "quality", "--weights", "4bit"),
        ("bench", "quality", "--kv-format", "int3"),
        ("bench", "quality", "--kv-prune", "1024"),
        ("bench", "quality", "--kv-prune", "4+64", "--kv-format", "int8"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    command: Callable[..., tuple[int, str, str]], arguments: tuple[str, ...]
) -> None:
    """Whatever is wrong with the command line is one line on standard error."""
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"prefixcache: [^\n]+\n", err)


@pytest.mark.parametrize("flags", [("--port", "x"), ("--model", "/nonexistent/model")])
def test_a_process_ends_with_the_code_and_the_line(flags: tuple[str, ...]) -> None:
    """A shell sees the same, also where a worker had to look first."""
    done = run("serve", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"prefixcache: [^\n]+\n", done.stderr)


def test_settings_that_only_the_worker_can_judge_are_bad_input_too(tmp_path: Path) -> None:
    """What cannot be served with the flags as they are is code 2; the last line says which."""
    write_tiny_model(tmp_path)
    done = run("serve", "--model", str(tmp_path), "--kv-memory", "1KiB")
    assert (done.returncode, done.stdout) == (2, "")
    *progress, last = done.stderr.splitlines()
    assert re.fullmatch(r"prefixcache: kv_memory_bytes = .+", last)
    assert not any(line.startswith("prefixcache: ") for line in progress)


def test_a_start_that_fails_is_one_line_and_code_1(tmp_path: Path) -> None:
    """What is right as input and does not work is another code."""
    done = run("serve", "--backend", "echo", "--model", str(tmp_path), "--log-level", "error")
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"prefixcache: [^\n]*tokenizer[^\n]*\n", done.stderr)


@pytest.mark.parametrize(
    ("words", "example"),
    [
        ((), "serve"),
        (("serve",), "serve"),
        (("bench",), "bench first-token"),
        (("bench", "first-token"), "bench first-token"),
        (("bench", "index"), "bench index"),
        (("bench", "attention"), "bench attention"),
        (("bench", "quality"), "bench quality"),
        (("cache",), "cache ls"),
        (("cache", "ls"), "cache ls"),
        (("cache", "verify"), "cache verify"),
        (("cache", "prune"), "cache prune"),
    ],
)
def test_help_ends_with_an_example(
    command: Callable[..., tuple[int, str, str]], words: tuple[str, ...], example: str
) -> None:
    """Help goes to standard output, says what is there and how it is used."""
    code, out, _ = command(*words, "--help")
    assert code == 0
    assert re.search(rf"Example: prefixcache {example} [^\n]+\n\Z", out)


def test_the_version_is_the_packages(command: Callable[..., tuple[int, str, str]]) -> None:
    """What is installed tells its version."""
    assert command("--version") == (0, f"prefixcache {version('prefixcache')}\n", "")


def test_the_gateway_does_not_import_torch() -> None:
    """Only the worker pays for torch: the gateway's process never loads it."""
    code = "import sys, gateway.app, gateway.cli; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, timeout=60, check=False)
    assert done.returncode == 0


def test_an_index_measurement_is_printed_and_written(tmp_path: Path) -> None:
    """`bench index` prints each figure and leaves a file that says how it was made."""
    file = tmp_path / "index.json"
    arguments = ("bench", "index", "--workload", "B", "--repeats", "1", "--json", str(file))
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(file.read_text(encoding="utf-8"))
    assert result["command"] == f"prefixcache {' '.join(arguments)}"
    assert result["repeats"] == 1
    assert result["machine"]["versions"]["prefixcache"]
    (row,) = result["rows"]
    assert row["workload"] == "B"
    assert row["figures"]["matched_tokens"] == 127_999
    for name in row["figures"]:
        assert re.search(rf"^B +{name} +[\d,.]+$", done.stdout, flags=re.MULTILINE)
