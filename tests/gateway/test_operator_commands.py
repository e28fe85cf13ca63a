"""The operator's commands, against a server with keys that runs as a process."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli import commands, main
from gateway.keys import hash_of
from gateway.usage_db import FLUSH_SECONDS
from tests.support.tenancy import ACME, ADMIN
from tests.support.tokenizers import write_piece_tokenizer

CONFIG = """
[server]
usage_db = "{usage_db}"
[tenants.acme]
key_hashes = ["{acme}"]
requests_per_minute = {rate}
[admin]
key_hashes = ["{admin}"]
"""


class Served:
    """A server process with keys, its files and its log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config, self.usage_db = folder / "config.toml", folder / "usage.sqlite3"
        self.log = (folder / "log").open("w+", encoding="utf-8")
        write_piece_tokenizer(folder / "tiny", [b"one", b" two"])
        self.write(rate=100)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gateway.cli", "serve", "--port", "0"),
                *("--backend", "echo", "--model", str(folder / "tiny")),
                *("--host", "0.0.0.0", "--config", str(self.config)),  # noqa: S104
            ],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = line.removeprefix("ready ").strip().replace("0.0.0.0", "127.0.0.1")  # noqa: S104

    def write(self, rate: int) -> None:
        text = CONFIG.format(
            usage_db=self.usage_db, acme=hash_of(ACME), admin=hash_of(ADMIN), rate=rate
        )
        self.config.write_text(text, encoding="utf-8")

    def ask(self, path: str, body: object, key: str) -> int:
        request = urllib.request.Request(  # noqa: S310
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {key}"},
        )
        try:
            with urllib.request.urlopen(request) as reply:  # noqa: S310
                return int(reply.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def chat(self) -> int:
        message = {"role": "user", "content": "one two"}
        return self.ask("/v1/chat/completions", {"model": "tiny", "messages": [message]}, ACME)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("served"))
    try:
        assert server.url
        yield server
    finally:
        server.close()


@pytest.fixture
def run() -> Callable[..., Result]:
    def run(*arguments: str, key: str | None = ADMIN) -> Result:
        return CliRunner().invoke(commands, arguments, env={"PREFIXCACHE_KEY": key or ""})

    return run


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    for _ in range(600):
        if condition():
            return
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise AssertionError("it never came")


def test_tenants_are_shown(served: Served, run: Callable[..., Result], tmp_path: Path) -> None:
    """As a table, or as the server's own JSON; the key comes from a variable or a file."""
    assert served.chat() == 200
    done = run("tenants", served.url)
    assert done.exit_code == 0
    assert re.search(r"^acme +1 +0 +0 +\d+ +- +\d+$", done.output, re.M)
    key_file = tmp_path / "key"
    key_file.write_text(f"{ADMIN}\n", encoding="utf-8")
    told = run("tenants", served.url, "--json", "--key-file", str(key_file), key=None)
    (acme,) = json.loads(told.output)["data"]
    assert (acme["name"], acme["limits"]["requests_per_minute"]) == ("acme", 100)


def test_usage_is_shown_from_the_server_and_from_its_file(
    served: Served, run: Callable[..., Result]
) -> None:
    """Both ways give the same report."""
    assert served.chat() == 200
    asked = run("usage", served.url, "--json")
    report = json.loads(asked.output)
    assert report["total"]["requests"] >= 1
    assert json.loads(run("usage", "--db", str(served.usage_db), "--json").output) == report
    table = run("usage", served.url, "--tenant", "acme").output
    assert re.search(r"^[\d-]{10} +acme +tiny +\d", table, re.M)
    assert re.search(r"^total +\d", table, re.M)
    nobody = run("usage", served.url, "--tenant", "nobody", "--json")
    assert json.loads(nobody.output)["data"] == []


def test_a_hangup_takes_up_new_limits(served: Served) -> None:
    """SIGHUP reads the file again; one that is wrong leaves all as it was, and is in the log."""
    served.write(rate=7)
    served.process.send_signal(signal.SIGHUP)
    wait_for(lambda: limit_of(served) == 7, served.process)
    served.config.write_text("[server]\nprot = 1", encoding="utf-8")
    served.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "prot" in log_of(served), served.process)
    assert limit_of(served) == 7
    assert served.ask("/admin/reload", {}, ADMIN) == 400
    served.write(rate=100)
    assert served.ask("/admin/reload", {}, ADMIN) == 200
    assert limit_of(served) == 100


def limit_of(served: Served) -> int:
    runner = CliRunner().invoke(
        commands, ("tenants", served.url, "--json"), env={"PREFIXCACHE_KEY": ADMIN}
    )
    found: dict[str, Any] = json.loads(runner.output)
    limit: int = found["data"][0]["limits"]["requests_per_minute"]
    return limit


def log_of(served: Served) -> str:
    return (served.folder / "log").read_text(encoding="utf-8")


def test_a_kill_loses_nothing_that_is_older_than_the_window(
    tmp_path: Path, run: Callable[..., Result]
) -> None:
    """What ended FLUSH_SECONDS before a kill -9 is on the account."""
    served = Served(tmp_path)
    try:
        assert served.chat() == 200
        with pytest.raises(subprocess.TimeoutExpired):
            served.process.wait(3 * FLUSH_SECONDS)
        served.process.kill()
        served.process.wait()
        report = json.loads(run("usage", "--db", str(served.usage_db), "--json").output)
        assert report["total"]["requests"] == 1
        assert "no API keys" not in log_of(served)
        assert "plain HTTP" in log_of(served)
        assert ACME not in log_of(served)
    finally:
        served.close()


def test_a_new_key_is_what_the_configuration_takes(run: Callable[..., Result]) -> None:
    """It is printed once beside its hash, as a table of the file; another time it is another."""
    first, second = (
        run("tenants", "new-key", "acme").output,
        run("tenants", "new-key", "a.b").output,
    )
    key = re.search(r"(pc-[\w-]{43})\n", first)
    assert key is not None
    assert f'[tenants.acme]\nkey_hashes = ["{hash_of(key[1])}"]' in first
    assert key[1] not in second
    assert '[tenants."a.b"]\n' in second
    assert "[admin]\n" in run("tenants", "new-key", "admin").output


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("tenants",), 2),
        (("tenants", "new-key"), 2),
        (("tenants", "new-key", "a b"), 2),
        (("tenants", "http://127.0.0.1:1"), 1),
        (("tenants", "nonsense"), 1),
        (("usage", "http://127.0.0.1:1", "--db", "x"), 2),
        (("usage", "--from", "yesterday"), 2),
        (("usage", "--db", "/nonexistent"), 1),
        (("usage", "http://127.0.0.1:1"), 1),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    arguments: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input is code 2; what is not there is code 1."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capsys.readouterr()
    assert ended.value.code == code
    assert told.out == ""
    assert re.fullmatch(r"prefixcache: [^\n]+\n", told.err)


def test_a_refusal_is_told(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key, and with a tenant's, the server's reason is the line."""
    for key, said in (("", "401: an API key is needed"), (ACME, "403: this route needs the admin")):
        monkeypatch.setenv("PREFIXCACHE_KEY", key)
        with pytest.raises(SystemExit):
            main(("tenants", served.url))
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["tenants", "usage"])
def test_help_ends_with_an_example(command: str, run: Callable[..., Result]) -> None:
    """Help says how the command is used."""
    assert re.search(
        rf"Example: prefixcache {command} http[^\n]+\n\Z", run(command, "--help").output
    )


def test_a_file_of_accounts_that_cannot_be_stops_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set place that cannot be used is bad input."""
    monkeypatch.setenv("PREFIXCACHE_SERVER__USAGE_DB", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(("serve", "--backend", "echo"))
    assert ended.value.code == 2
    assert "usage_db" in capsys.readouterr().err


def test_an_unknown_variable_stops_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable with our prefix that is no setting is one line and code 2."""
    monkeypatch.setenv("PREFIXCACHE_SERVER__PROT", "1")
    with pytest.raises(SystemExit) as ended:
        main(("serve",))
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "prefixcache: PREFIXCACHE_SERVER__PROT = '...': there is no setting server.prot\n"
    )
