"""The server of a remote tier as a setting: what it says of it, and what it keeps to itself."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gateway.settings import Sources
from prefixcache.config import EngineConfig
from prefixcache.errors import ConfigError
from tests.support.models import write_tiny_model
from tests.support.servers import running_server

PASSWORD = "not-to-be-seen"
VARIABLE = "PREFIXCACHE_ENGINE__REMOTE"
PAGES = ("/health", "/ready", "/metrics", "/admin/stats", "/admin/dashboard", "/v1/models")


def fetched(url: str, body: dict[str, object] | None = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data, headers)  # noqa: S310 (ours)
    with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310
        text: str = reply.read().decode()
        return text


def test_no_answer_and_no_line_tells_the_credentials(tmp_path: Path) -> None:
    """With a server that is not there: it is named in the log without user and password."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    write_tiny_model(tmp_path / "model")
    arguments = ["--model", str(tmp_path / "model"), "--kv-memory", "1MiB", "--log-level", "debug"]
    env = {VARIABLE: f"redis://someone:{PASSWORD}@127.0.0.1:{port}/0"}
    with (tmp_path / "log").open("w+b") as log:
        with running_server([*arguments, "--remote-ttl", "60"], log, env) as server:
            body = {"model": "any", "prompt": "one " * 40, "max_tokens": 2}
            body["model"] = json.loads(fetched(f"{server.url}/v1/models"))["data"][0]["id"]
            said = [fetched(f"{server.url}/v1/completions", body)]
            said += [fetched(server.url + page) for page in PAGES]
        log.seek(0)
        lines = log.read().decode()
    assert f"redis://127.0.0.1:{port}/0 cannot be used" in lines
    for text in (lines, *said):
        assert PASSWORD not in text
        assert "someone" not in text
    assert 'prefixcache_tier_out{tier="remote"}' in "".join(said)


def test_a_url_that_is_none_ends_the_start_without_telling_it(tmp_path: Path) -> None:
    """Bad input: exit code 2, one line that names the setting, no password."""
    write_tiny_model(tmp_path / "model")
    command = [sys.executable, "-m", "gateway.cli", "serve", "--port", "0", "--kv-memory", "1MiB"]
    command += ["--model", str(tmp_path / "model"), "--remote", f"http://me:{PASSWORD}@host"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "remote = 'http://host': is no URL" in done.stderr
    assert PASSWORD not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("setting", "value"),
    [("remote_ttl_seconds", 0), ("remote_value_bytes", 1023), ("remote_value_bytes", 2**28 + 1)],
)
def test_a_remote_setting_that_cannot_work_is_refused(setting: str, value: int) -> None:
    """At once, wherever it comes from."""
    with pytest.raises(ConfigError, match=setting):
        EngineConfig(**{setting: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=setting):
        Sources(env={f"PREFIXCACHE_ENGINE__{setting.upper()}": str(value)}).read()


def test_remote_settings_reach_the_tier(tmp_path: Path) -> None:
    """From a file and from variables alike."""
    file = tmp_path / "settings.toml"
    file.write_text("[engine]\nremote_ttl_seconds = 5\nremote_value_bytes = 2048\n")
    engine = Sources(file, {"PREFIXCACHE_ENGINE__REMOTE_TTL_SECONDS": "7"}).read().engine
    assert (engine.remote_ttl_seconds, engine.remote_value_bytes) == (7, 2048)
