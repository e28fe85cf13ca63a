"""What the README shows is what happens."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import Server, running_server

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = dict(re.findall(r"<!-- command: (\w+) -->\n```bash\n(.*?)```", README, flags=re.DOTALL))


@pytest.fixture(scope="module")
def server(default_model: Path) -> Iterator[Server]:
    """The README's own serve command, less the install and with a free port."""
    assert default_model.exists()
    command = shlex.split(COMMANDS["serve"].rpartition("&&")[2])
    assert command == [".venv/bin/prefixcache", "serve"]
    with running_server([]) as server:
        yield server


def run_block(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.model
def test_client_block_shows_a_cached_prompt(server: Server) -> None:
    """The openai block prints more cached tokens for the second question than for the first."""
    (block,) = [block for block in PYTHON_BLOCKS if "OpenAI(" in block]
    assert "http://127.0.0.1:8000" in block
    lines = run_block(block.replace("http://127.0.0.1:8000", server.url))
    counts = [re.fullmatch(r"(\d+) prompt tokens, (\d+) cached", line) for line in lines]
    cached = [int(count[2]) for count in counts if count]
    assert len(cached) == 2
    assert cached[0] < 32
    assert cached[1] > 400


@pytest.mark.model
def test_library_block_runs(default_model: Path) -> None:
    """The block without HTTP answers twice, the second time from the cache."""
    assert default_model.exists()
    (block,) = [block for block in PYTHON_BLOCKS if "LocalModel" in block]
    lines = run_block(block)
    assert int(lines[-1].rsplit(" ", 1)[1]) > 150


def test_the_key_command_prints_a_key() -> None:
    """It runs without a server, and says where its line belongs."""
    command = shlex.split(COMMANDS["key"])
    assert command[0] == ".venv/bin/prefixcache"
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", *command[1:]],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "key_hashes" in done.stdout
    assert "[tenants.shop]" in done.stdout


def test_every_python_block_is_run() -> None:
    """The two blocks above are all that there are."""
    assert len(PYTHON_BLOCKS) == 2


def test_figures_are_the_committed_ones() -> None:
    """The table of first tokens shows what the result file holds, to the digit."""
    result = json.loads((ROOT / "examples/results/first_token.json").read_text(encoding="utf-8"))
    for row in result["rows"]:
        cells = (
            f"{row['prefix_tokens']:,}",
            f"{row['cold_seconds']:.2f} s",
            f"{row['warm_seconds']:.3f} s",
            f"{row['cold_to_warm']:.1f}",
            f"{row['warm_to_straight']:.2f}",
        )
        assert f"| {' | '.join(cells)} |" in README
    assert result["command"] in README
