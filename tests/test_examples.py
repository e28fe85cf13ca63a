"""The examples run, on a smaller scale."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SYSTEMD = shutil.which("systemd-analyze")


def test_kv_cache_example_counts_what_a_cache_saves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three ways to the same tokens: everything again each time, once, and only what is new."""
    from examples import kv_cache  # torch: not for every test's start

    n_tokens, n_shared = 70, 48
    monkeypatch.setattr(kv_cache, "N_TOKENS", n_tokens)
    monkeypatch.setattr(kv_cache, "N_SHARED", n_shared)
    kv_cache.main()
    lines = capsys.readouterr().out.splitlines()
    counts = [
        int(re.findall(r"([\d,]+) +\d+\.\d\d$", line)[0].replace(",", "")) for line in lines[1:4]
    ]
    assert counts == [n_tokens * (n_tokens + 1) // 2, n_tokens, n_tokens - n_shared]
    assert lines[4] == "the same tokens each time: True"


def test_tenants_example_shows_who_finds_what(capsys: pytest.CaptureFixture[str]) -> None:
    """Both find the published prompt, each its own question, and nobody the other's."""
    from examples import tenants

    tenants.main()
    lines = capsys.readouterr().out.splitlines()
    cached = [int(found) for found in re.findall(r": (\d+) of 130", "\n".join(lines))]
    assert cached == [90, 90, 128, 128]
    assert "bakery's prompt: 90 cached" in lines[4]
    assert "retired_version" in lines[5]


def test_step_cost_example_tells_work_from_the_rest() -> None:
    """What is outside the model is a share of the step; what is neither product nor attention, of
    the model's part."""
    from examples import step_cost

    step = {"step": 0.010, "forward": 0.008, "products": 0.005, "attention": 0.002}
    assert step_cost.figures([step, step]) == {
        "steps": 2,
        "step_ms": 10.0,
        "forward_ms": 8.0,
        "engine_share_of_step": 0.2,
        "rest_share_of_forward": 0.125,
    }


def test_step_cost_example_watches_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and attention are parts of a forward, a forward is part of a step."""
    from examples import step_cost
    from prefixcache.config import EngineConfig
    from prefixcache.engine import Engine
    from prefixcache.engine.model import PagedModel
    from prefixcache.engine.weights import lean
    from prefixcache.engine.weights.modules import PackedLinear
    from tests.support.architectures import tiny_model

    watched = ((PagedModel, "forward"), (PackedLinear, "forward"), (lean, "attended"))
    for owner, name in watched:  # so that they are put back
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(step_cost, "N_TOKENS", 5)
    config = EngineConfig(weights="float32", kv_memory_bytes=2**22, speculation="off")
    watch = step_cost.Stopwatch()
    step_cost.watch_model(watch)
    steps = step_cost.decode_steps(Engine.from_model(tiny_model("llama"), config), watch, 32, 5)
    assert len(steps) >= 2
    for parts in steps:
        assert 0 < parts["products"] + parts["attention"] < parts["forward"] < parts["step"]


@pytest.mark.skipif(SYSTEMD is None, reason="needs systemd-analyze")
def test_the_systemd_unit_is_one(tmp_path: Path) -> None:
    """systemd knows every line of it; only the program's place is another here."""
    text = (EXAMPLES / "prefixcache.service").read_text(encoding="utf-8")
    program = re.findall(r"^ExecStart=(\S+) serve ", text, re.M)
    assert program == ["/opt/prefixcache/bin/prefixcache"]
    unit = tmp_path / "prefixcache.service"
    unit.write_text(text.replace(program[0], sys.executable), encoding="utf-8")
    found = subprocess.run(
        [str(SYSTEMD), "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0
    assert unit.name not in found.stderr  # it may warn of others


def test_the_sampled_curve_is_measured() -> None:
    """On a stream of at least so many blocks."""
    from examples import sampled_curve

    result = sampled_curve.measured(2000)
    assert 2000 <= result["blocks"] < 2100
    assert result["peak_mib"]["after"] >= result["peak_mib"]["before"] > 0
