"""Weights that no longer depend on the files that they were read from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from prefixcache.engine.owning import own_weights
from tests.support.architectures import tiny_model


@pytest.mark.parametrize("maps", ["/proc/self/maps", "/nowhere"])
def test_weights_survive_their_file(tmp_path: Path, maps: str) -> None:
    """Once they are our own, a file that is overwritten in its place changes nothing.

    Tied weights stay one; what is our own is not copied again.
    """
    expected = tiny_model("llama")
    expected.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    total = sum(parameter.nbytes for parameter in model.parameters())
    assert own_weights(model, Path(maps)) >= total / 2
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    for found, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(found, wanted)
    if maps != "/nowhere":
        assert own_weights(model) == 0
