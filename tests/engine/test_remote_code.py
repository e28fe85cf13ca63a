"""Code that comes with a model is never run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from prefixcache.config import EngineConfig
from prefixcache.engine import Engine
from prefixcache.errors import ModelError
from tests.support.models import write_tiny_model


def test_code_in_a_model_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that wants its own modelling code is refused; the code leaves no trace."""
    monkeypatch.setattr("builtins.input", lambda _question: "y")  # somebody would say yes
    folder = tmp_path / "model"
    write_tiny_model(folder)
    trace = tmp_path / "it ran"
    (folder / "own.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Own: ...\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError):
        Engine.load(EngineConfig(model=str(folder), kv_memory_bytes=1 << 20), env={})
    assert not trace.exists()


class Leaves:
    """What makes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.trace,)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    """A folder whose weights are a pickle alone is refused, and the pickle is not read."""
    folder, trace = tmp_path / "model", tmp_path / "it ran"
    write_tiny_model(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Leaves(trace)}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        Engine.load(EngineConfig(model=str(folder), kv_memory_bytes=1 << 20), env={})
    assert not trace.exists()
