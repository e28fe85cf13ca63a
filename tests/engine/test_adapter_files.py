"""Reading adapters: plain LoRA as peft writes it, and the refusal of everything else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from prefixcache.errors import AdapterError, ConfigError
from tests.support.adapters import merged, read_config, write_adapter, write_config
from tests.support.models import Bench, oracle, prompt_ids

PROMPT = prompt_ids(21)
FILE = "adapter_model.safetensors"
Q = "base_model.model.model.layers.0.self_attn.q_proj"
Q_PATH = "model.layers.0.self_attn.q_proj"
DOWN_PATH = "model.layers.2.mlp.down_proj"


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


@pytest.fixture
def folder(bench: Bench, tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", bench.reference)


def is_served(bench: Bench, folder: Path, alphas: dict[str, float] | None = None) -> bool:
    """Whether the adapter loads, gives what its merged weights give, and changes the answer."""
    bench.engine.load_adapter("a", str(folder))
    answer = bench.run(PROMPT, 10, adapter="a").token_ids
    plain = oracle(bench.reference, PROMPT, 10).is_same(answer)
    return (
        oracle(merged(bench.reference, folder, alphas=alphas), PROMPT, 10).is_same(answer)
        and not plain
    )


def refusal(bench: Bench, folder: Path) -> str:
    with pytest.raises(AdapterError) as caught:
        bench.engine.load_adapter("refused", str(folder))
    assert "refused" in str(caught.value)
    assert all(adapter.name != "refused" for adapter in bench.engine.info.adapters)
    return str(caught.value)


def set_config(folder: Path, **settings: Any) -> None:
    write_config(folder, read_config(folder) | settings)


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / FILE)
    change(tensors)
    save_file(tensors, folder / FILE)


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True},
        {"r": 7, "lora_alpha": 3.5},
        {"targets": ("q_proj", "v_proj")},
        {"targets": ("k_proj", "up_proj")},
        {"target_modules": r".*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"},
        {"target_modules": "all-linear"},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float16, "lora_dropout": 0.1, "task_type": "CAUSAL_LM"},
        {"init_lora_weights": "gaussian", "use_dora": False, "modules_to_save": None},
        {"layers_to_transform": [0, 1, 2], "exclude_modules": ["lm_head"]},
        {"some_future_setting": None, "another": False},
    ],
    ids=str,
)
def test_plain_adapters_are_served(bench: Bench, tmp_path: Path, settings: dict[str, Any]) -> None:
    """Whatever the rank, the targets and the numbers: the answer is the merged model's."""
    assert is_served(bench, write_adapter(tmp_path, bench.reference, seed=3, **settings))


def test_patterns_give_layers_their_own_rank_and_alpha(bench: Bench, tmp_path: Path) -> None:
    """A pattern is a name, or an expression, for the end of a path; the first one counts."""
    alphas = {Q_PATH: 32.0, DOWN_PATH: 1.0}
    folder = write_adapter(
        tmp_path,
        bench.reference,
        ranks={Q_PATH: 2, DOWN_PATH: 9},
        rank_pattern={r"layers\.0\.self_attn\.q_proj": 2, "model.layers.2.mlp.down_proj": 9},
        alpha_pattern={r"0\.self_attn\.q_proj": 32, r"2\.mlp\.down_pro.": 1, ".*down_proj": 8},
    )
    assert is_served(bench, folder, alphas)
    assert bench.engine.info.adapters[-1].rank == 9


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"peft_type": None}, "peft_type"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"target_parameters": ["experts.w"]}, "target_parameters"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"alora_invocation_tokens": [3]}, "alora_invocation_tokens"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"some_future_setting": {"a": 1}}, "some_future_setting"),
        ({"r": 0}, "r"),
        ({"r": 10**9}, "r"),
        ({"r": "four"}, "r"),
        ({"lora_alpha": None}, "lora_alpha"),
        ({"rank_pattern": {"(": 4}}, "'(.*\\\\.)?(()$'"),
        ({"target_modules": ["k_proj"]}, "target_modules"),
        ({"exclude_modules": ["q_proj"]}, "target_modules"),
        ({"layers_to_transform": 1}, "target_modules"),
    ],
    ids=str,
)
def test_what_is_not_plain_is_refused_by_name(
    bench: Bench, folder: Path, settings: dict[str, Any], named: str
) -> None:
    """The message says which setting is at fault, and nothing is loaded."""
    set_config(folder, **settings)
    assert named in refusal(bench, folder)


@pytest.mark.parametrize(
    ("name", "shape", "told"),
    [
        (f"{Q}.lora_magnitude_vector.weight", (64,), "DoRA"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", (4, 320), "embeddings"),
        (f"{Q}.lora_B.bias", (64,), "biases"),
        ("base_model.model.lm_head.lora_A.weight", (4, 64), "no linear layer lm_head"),
        ("base_model.model.lm_head.weight", (320, 64), "no part of a plain LoRA"),
        (f"{Q.replace('.0.', '.7.')}.lora_A.weight", (4, 64), "model.layers.7.self_attn.q_proj"),
    ],
)
def test_foreign_tensors_are_refused_by_name(
    bench: Bench, folder: Path, name: str, shape: tuple[int, ...], told: str
) -> None:
    """A tensor that would be left out is named, with what it would have been."""
    change_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(shape)}))
    message = refusal(bench, folder)
    assert name in message
    assert told in message


def test_shapes_are_held_to_the_model(bench: Bench, folder: Path) -> None:
    """A tensor of another model is told with what was found and what was expected."""
    name = f"{Q}.lora_A.weight"
    change_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(4, 48)}))
    message = refusal(bench, folder)
    assert all(part in message for part in (name, "[4, 48]", "[4, 64]"))


def test_ranks_are_held_to_the_settings(bench: Bench, folder: Path) -> None:
    """A rank that the settings do not give would be scaled wrongly."""
    set_config(folder, r=8)
    assert "rank of 8" in refusal(bench, folder)


def test_a_half_pair_is_refused(bench: Bench, folder: Path) -> None:
    """Without its other half a matrix adds nothing."""
    change_tensors(folder, lambda tensors: tensors.pop(f"{Q}.lora_B.weight"))
    assert f"{Q}.lora_B.weight is missing" in refusal(bench, folder)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_are_finite(bench: Bench, folder: Path, number: float) -> None:
    """One bad number would make every answer of the adapter nonsense."""
    name = f"{Q}.lora_B.weight"
    change_tensors(folder, lambda tensors: tensors[name][3].fill_(number))
    assert name in refusal(bench, folder)


def test_weights_that_overflow_are_refused(bench: Bench, folder: Path) -> None:
    """An adapter is tried at load: logits that are no numbers would fail each request."""
    change_tensors(folder, lambda tensors: [each.mul_(1e30) for each in tensors.values()])
    assert "finite" in refusal(bench, folder)


def test_integers_are_refused(bench: Bench, folder: Path) -> None:
    """Quantized adapters have scales of their own, which are not read."""
    name = f"{Q}.lora_A.weight"
    change_tensors(
        folder, lambda tensors: tensors.update({name: torch.zeros(4, 64, dtype=torch.int8)})
    )
    assert "I8" in refusal(bench, folder)


def test_pickles_are_not_read(bench: Bench, folder: Path) -> None:
    """A file that can run code is refused, and the message says so."""
    (folder / FILE).rename(folder / "adapter_model.bin")
    assert "adapter_model.bin is not read" in refusal(bench, folder)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * 8 + b"{}"])
def test_broken_weights_are_refused(bench: Bench, folder: Path, content: bytes) -> None:
    """A file that is cut, or no such file at all, is an error of the adapter's own."""
    (folder / FILE).write_bytes(content)
    assert FILE in refusal(bench, folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000, b" " * (2**20 + 1)])
def test_broken_settings_are_refused(bench: Bench, folder: Path, content: bytes) -> None:
    """Whatever stands in the settings' place, the message names the file."""
    (folder / "adapter_config.json").write_bytes(content)
    assert "adapter_config.json" in refusal(bench, folder)


def test_missing_folders_are_told(bench: Bench, tmp_path: Path) -> None:
    """A folder that is not there is named."""
    assert str(tmp_path / "nowhere") in refusal(bench, tmp_path / "nowhere")


def test_expressions_have_a_time_limit(bench: Bench, folder: Path) -> None:
    """An expression that would take for ever costs a second, not the server."""
    set_config(folder, target_modules=r"(?:(?:[a-z]|[a-z.]|[a-z0-9_.])+)+(?=[!])")
    assert "takes too long" in refusal(bench, folder)


@pytest.mark.parametrize("name", ["", " a", "a\n", "x" * 129])
def test_names_can_be_written(bench: Bench, folder: Path, name: str) -> None:
    """A name that no log or list could show is refused."""
    with pytest.raises(ConfigError):
        bench.engine.load_adapter(name, str(folder))


def test_a_refused_load_leaves_the_old_one(bench: Bench, folder: Path) -> None:
    """When new weights cannot be used, the name keeps what it had, cached prefixes too."""
    bench.engine.load_adapter("kept", str(folder))
    answer = bench.run(PROMPT, 6, adapter="kept")
    set_config(folder, use_dora=True)
    with pytest.raises(AdapterError):
        bench.engine.load_adapter("kept", str(folder))
    again = bench.run(PROMPT, 6, adapter="kept")
    assert again.token_ids == answer.token_ids
    assert again.cached_tokens == 20
