"""The runner of cache scripts: what it tells, what it refuses, and scripts from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import run_ops
from tests.cases.run_ops import ScriptError, ScriptRunner, main, namespace_of
from tests.cases.steps import Op, P, abort, cached, finish, hold, matched, play, pool, run


def test_namespaces_that_are_spelled_alike_are_one() -> None:
    """Field order, nulls and the default's spellings make no difference."""
    assert namespace_of(None) == namespace_of("default") == namespace_of({"salt": None})
    assert namespace_of({"a": 1, "b": 2}) == namespace_of({"b": 2, "a": 1})


@pytest.mark.parametrize(
    "wrong",
    [
        cached("a", 1, 9),
        cached("nobody", 0, 9),
        matched(P, 0, 3),
        matched(P, 5, 9),
        matched(P, 4, ns="other"),
        pool(free=6),
        pool(free=5, cached=1),
        pool(held=2),
        hold("h", P, expect="wait"),
        hold("h", P, expect="reject"),
        hold("h", list(range(99))),
        hold("h", list(range(99)), expect="wait"),
        hold("live", P),
        run("live", P),
        {"op": "queue", "id": "live", "tokens": P},
        finish("nobody"),
        abort("nobody"),
        abort("live", expect="noop"),
    ],
    ids=json.dumps,
)
def test_the_runner_tells_a_difference(wrong: Op) -> None:
    """Each kind of expectation can fail, and the line names the step."""
    told = play(run("a", P), hold("live", [5]), wrong)
    assert len(told) == 1
    assert told[0].startswith("step 3 ")


@pytest.mark.parametrize(
    "malformed",
    [
        {"op": "dance"},
        {"tokens": P},
        {"op": "run", "tokens": P},
        {"op": "run", "id": "a"},
        {"op": "run", "id": "a", "tokens": [-1]},
        {"op": "run", "id": "a", "tokens": P, "out": 5},
        {"op": "hold", "id": "a", "tokens": P, "expect": "luck"},
        {"op": "hold", "id": "a", "tokens": P, "ns": 5},
        {"op": "evict"},
        {"op": "evict", "blocks": True},
        {"op": "expect", "id": "a"},
        {"op": "expect_match", "tokens": P, "cached_tokens": [1]},
        {"op": "expect_pool", "free": "many"},
    ],
    ids=json.dumps,
)
def test_a_malformed_step_is_not_taken_for_a_difference(malformed: Op) -> None:
    """The runner refuses what it does not understand."""
    with pytest.raises(ScriptError):
        play(malformed)


def write(folder: Path, name: str, script: object) -> str:
    file = folder / name
    file.write_text(json.dumps(script), "utf-8")
    return str(file)


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 as expected, 1 with the steps that differ, 2 for what cannot be played."""
    base = {"format": "cache-ops/1", "block_size": 4, "pool_blocks": 8}
    good = write(tmp_path, "good.ops.json", {**base, "ops": [pool(free=8)]})
    bad = write(tmp_path, "bad.ops.json", {**base, "ops": [pool(free=7), pool(free=8)]})
    assert main([good]) == 0
    assert main([good, bad]) == 1
    assert capsys.readouterr().out == f"{bad}: step 1 expect_pool: expected 7 free, found 8\n"
    other = {**base, "format": "cache-ops/2", "ops": []}
    for broken in (other, {**base, "block_size": 0, "ops": []}, base, [other]):
        assert main([write(tmp_path, "broken.ops.json", broken), good]) == 2
    (tmp_path / "text.ops.json").write_text("{", "utf-8")
    assert main([str(tmp_path / "text.ops.json")]) == 2
    assert main([str(tmp_path / "missing.ops.json")]) == 2
    assert main([]) == 2


def test_the_runner_is_a_command_of_its_own(tmp_path: Path) -> None:
    """It runs from any folder, installed or not."""
    script = {"block_size": 4, "pool_blocks": 8, "ops": [pool(free=7)]}
    command = [sys.executable, run_ops.__file__, write(tmp_path, "a.ops.json", script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "expected 7 free, found 8" in done.stdout


CASES = os.environ.get("PREFIXCACHE_CASES", "")
HANDED = sorted(Path(CASES).rglob("*.ops.json")) if CASES else []


@pytest.mark.skipif(not CASES, reason="PREFIXCACHE_CASES names no folder of scripts")
def test_handed_scripts_are_found() -> None:
    """A folder that is named has scripts in it."""
    assert HANDED


@pytest.mark.parametrize("file", HANDED, ids=lambda file: file.name)
def test_handed_script(file: Path) -> None:
    """Every step of a script from outside is as it expects."""
    assert ScriptRunner(json.loads(file.read_text("utf-8"))).differences() == []
