"""Requests with adapters: what transformers gives with the adapter merged into its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from prefixcache.config import EngineConfig
from prefixcache.engine import LocalModel
from prefixcache.errors import AdapterError
from prefixcache.types import FailureKind, SamplingParams
from tests.support.adapters import ALL, merged, write_adapter
from tests.support.architectures import tiny_model
from tests.support.models import Bench, oracle, prompt_ids

PROMPT = prompt_ids(37)
ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral-window")


class Adapted(Bench):
    """A tiny engine with the adapters "one" and "two", and an oracle for each."""

    def __init__(self, folder: Path, architecture: str = "llama", **settings: Any) -> None:
        super().__init__(architecture, **settings)
        self.folder = folder
        self.oracles: dict[str | None, PreTrainedModel] = {None: self.reference}
        for seed, name in enumerate(("one", "two"), start=1):
            self.put(name, seed)

    def put(self, name: str, seed: int) -> None:
        """Write and load an adapter, or another one of the same name."""
        folder = write_adapter(self.folder / f"{name}-{seed}", self.reference, seed=seed)
        self.engine.load_adapter(name, str(folder))
        self.oracles[name] = merged(self.reference, folder)

    def modules(self) -> list[torch.nn.Module]:
        return list(self.loaded.model.model.modules())

    def is_right(self, name: str | None, prompt: list[int], token_ids: list[int]) -> bool:
        expected = oracle(self.oracles[name], prompt, len(token_ids))
        return bool(token_ids) and expected.is_same(token_ids)


@pytest.fixture
def bench(tmp_path: Path) -> Adapted:
    return Adapted(tmp_path)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_adapters_give_what_merged_weights_give(
    tmp_path: Path, architecture: str, prefix_cache: bool
) -> None:
    """Each adapter, and none, gives its own answer: cached or not, the first time and again."""
    bench = Adapted(tmp_path, architecture, prefix_cache=prefix_cache)
    answers: dict[str | None, list[int]] = {}
    for _ in range(2):
        for name in (None, "one", "two"):
            answer = bench.run(PROMPT, 12, adapter=name)
            assert bench.is_right(name, PROMPT, answer.token_ids)
            assert answers.setdefault(name, answer.token_ids) == answer.token_ids
    assert len(set(map(tuple, answers.values()))) == 3


def test_adapters_of_gpt2_layers_give_what_merged_weights_give(tmp_path: Path) -> None:
    """Layers that keep their weight the other way round are adapted the same."""
    bench = Bench("gpt2")
    targets = ("c_attn", "c_proj", "c_fc")
    folder = write_adapter(tmp_path, bench.reference, targets=targets, fan_in_fan_out=True)
    bench.engine.load_adapter("a", str(folder))
    answer = bench.run(PROMPT, 12, adapter="a")
    assert oracle(merged(bench.reference, folder), PROMPT, 12).is_same(answer.token_ids)
    assert not oracle(bench.reference, PROMPT, 12).is_same(answer.token_ids)


@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_adapters_are_added_to_packed_weights(tmp_path: Path, weights: str) -> None:
    """With weights of fewer bits an adapter still changes the logits as the merged one does."""
    bench = Bench("llama", weights=weights)
    folder = write_adapter(tmp_path, bench.reference)
    bench.engine.load_adapter("a", str(folder))
    bench.run(PROMPT, 1, adapter="a")
    expected = oracle(merged(bench.reference, folder), PROMPT, 1).logits[0]
    assert (bench.model.rows[-1] - expected).norm() < 0.1 * expected.norm()
    bench.run(PROMPT, 1)
    assert (bench.model.rows[-1] - expected).norm() > 0.5 * expected.norm()


@pytest.mark.parametrize("n_shared", [0, 20])
def test_mixed_batches_equal_solo_runs(bench: Adapted, n_shared: int) -> None:
    """Requests of several adapters and of none, in one batch, get each its own answer.

    Whether they begin alike, and so stand side by side anyway, or not.
    """
    names = [None, "one", "two", "one", None, "two"]
    prompts = [PROMPT[:n_shared] + prompt_ids(n, seed=n) for n in range(13, 19)]
    for index, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        bench.submit(f"r{index}", prompt, 10, adapter=name)
    bench.drain()
    assert any(len(step.adapters) == 2 for step in bench.model.steps)
    for index, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        assert bench.is_right(name, prompt, bench.answers[f"r{index}"].token_ids)


def test_prefixes_are_matched_under_their_own_adapter_alone(bench: Adapted) -> None:
    """What one adapter or the plain model has read is nothing to another one."""
    for name in (None, "one", "two"):
        assert bench.run(PROMPT, 4, adapter=name).cached_tokens == 0
    for name in (None, "one", "two"):
        assert bench.run(PROMPT, 4, adapter=name).cached_tokens == 36


@pytest.mark.parametrize("seed", [1, 5])
def test_a_new_load_matches_nothing_old(bench: Adapted, seed: int) -> None:
    """After a reload, of the same files too, a prompt is read anew; the other adapters keep theirs.

    What the old load had cached is given up before anything else.
    """
    for name in (None, "one", "two"):
        bench.run(PROMPT, 4, adapter=name)
    n_cached = bench.engine.stats().pool.cached
    bench.put("one", seed)
    assert bench.engine.cache.reclaim() == n_cached // 3
    answer = bench.run(PROMPT, 10, adapter="one")
    assert answer.cached_tokens == 0
    assert bench.is_right("one", PROMPT, answer.token_ids)
    assert bench.run(PROMPT, 4, adapter="two").cached_tokens == 36
    assert bench.run(PROMPT, 4).cached_tokens == 36


def test_requests_end_with_the_weights_that_they_began_with(bench: Adapted) -> None:
    """A reload changes nothing for who runs or waits; who comes later has the new weights."""
    before = bench.oracles["one"]
    bench.submit("running", PROMPT, 16, adapter="one")
    bench.step_until(lambda: len(bench.answers["running"].token_ids) >= 4)
    bench.submit("waiting", PROMPT[:30], 16, adapter="one")
    bench.put("one", 7)
    bench.submit("later", PROMPT, 16, adapter="one")
    bench.drain()
    for name, prompt in (("running", PROMPT), ("waiting", PROMPT[:30])):
        assert oracle(before, prompt, 16).is_same(bench.answers[name].token_ids)
    later = bench.answers["later"]
    assert later.cached_tokens == 0
    assert bench.is_right("one", PROMPT, later.token_ids)
    assert bench.run(PROMPT, 4, adapter="one").cached_tokens == 36
    bench.engine.cache.check()


def test_preempted_requests_resume_with_the_weights_that_they_began_with(tmp_path: Path) -> None:
    """One that gave its room back, and was computed again after a reload, ends as it would have."""
    bench = Adapted(tmp_path, n_blocks=24)
    before = bench.oracles["one"]
    prompts = {name: prompt_ids(24, seed=index) for index, name in enumerate("abc")}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, 24, adapter="one")
    bench.step_until(lambda: bench.engine.stats().preemptions_total)
    bench.put("one", 8)
    bench.drain()
    for name, prompt in prompts.items():
        assert oracle(before, prompt, 24).is_same(bench.answers[name].token_ids)


def test_an_adapter_is_unloaded_while_it_runs(bench: Adapted) -> None:
    """Its requests end as they would have; new ones are refused by name, nothing stays held."""
    bench.submit("running", PROMPT, 12, adapter="one")
    bench.step_until(lambda: bench.answers["running"].token_ids)
    info = bench.engine.unload_adapter("one")
    assert [adapter.name for adapter in info.adapters] == ["two"]
    bench.drain()
    assert bench.is_right("one", PROMPT, bench.answers["running"].token_ids)
    failed = bench.run(PROMPT, 4, adapter="one").failed
    assert failed.kind is FailureKind.INVALID
    assert "'one'" in failed.message
    assert bench.n_held == 0


def test_answers_continue_under_the_same_adapter(bench: Adapted) -> None:
    """The next turn of a conversation finds prompt and answer that its adapter has computed."""
    first = bench.run(PROMPT, 9, adapter="two")
    turn = PROMPT + first.token_ids + prompt_ids(6, seed=4)
    answer = bench.run(turn, 8, adapter="two")
    assert answer.cached_tokens == 44
    assert bench.is_right("two", turn, answer.token_ids)


def test_models_tell_their_adapters(bench: Adapted) -> None:
    """Each load is told with its folder and size, and has an id of its own."""
    one, two = bench.engine.info.adapters
    assert (one.name, one.rank, one.n_layers) == ("one", 4, 21)
    assert one.folder.endswith("one-1")
    bench.put("one", 1)
    assert bench.engine.info.adapters[1] == two
    assert bench.engine.info.adapters[0].load_id != one.load_id


def test_steps_without_adapters_run_no_hook(bench: Adapted) -> None:
    """Once nobody in the batch has an adapter, modules are as if none had ever been loaded."""

    def n_hooks() -> int:
        return sum(len(module._forward_hooks) for module in bench.modules())

    assert n_hooks() == 0
    bench.submit("a", PROMPT, 3, adapter="one")
    bench.step()
    assert n_hooks() > 0
    bench.drain()
    bench.run(PROMPT, 2)
    assert n_hooks() == 0


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_adapters_are_added_to_modules_that_were_not_packed(
    tmp_path: Path, architecture: str
) -> None:
    """A model that keeps its own linear layers gives the merged model's answer too."""
    model = tiny_model(architecture)
    targets = ("c_attn", "c_fc") if architecture == "gpt2" else ALL
    folder = write_adapter(tmp_path, model, targets=targets)
    expected = oracle(merged(model, folder), PROMPT, 10)
    local = LocalModel.from_model(model, EngineConfig(kv_memory_bytes=1 << 20, block_size_tokens=4))
    local.engine.load_adapter("a", str(folder))
    for _ in range(2):
        (answer,) = local.generate([PROMPT], SamplingParams(max_tokens=10), adapter="a")
        assert expected.is_same(answer.token_ids)
    assert answer.usage.cached_tokens == 36


def test_adapters_are_added_in_the_models_own_numbers(tmp_path: Path) -> None:
    """In bfloat16 the logits are near those of the weights that were merged in float32."""
    bench = Bench("llama", dtype=torch.bfloat16, weights="auto")
    folder = write_adapter(tmp_path, bench.reference)
    bench.engine.load_adapter("a", str(folder))
    bench.run(PROMPT, 1, adapter="a")
    expected = oracle(merged(tiny_model("llama"), folder), PROMPT, 1).logits[0]
    assert (bench.model.rows[-1] - expected).norm() < 0.1 * expected.norm()


class FirstRow(nn.Module):
    """A module of which one linear layer sees a single row, and another one none."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.first, self.never = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, rows: Tensor) -> Tensor:
        self.first(rows[:, :1])
        output: Tensor = self.inner(rows)
        return output


@pytest.mark.parametrize(("target", "told"), [("first", "1 rows came"), ("never", "never called")])
def test_layers_that_do_not_see_every_row_cannot_be_adapted(
    tmp_path: Path, target: str, told: str
) -> None:
    """Rows of such a layer could not be told apart; the trial at load finds it."""
    model = tiny_model("llama")
    model.model.layers[1].mlp = FirstRow(model.model.layers[1].mlp)
    folder = write_adapter(tmp_path, model, targets=(target,))
    engine = LocalModel.from_model(model, EngineConfig(kv_memory_bytes=1 << 20)).engine
    with pytest.raises(AdapterError, match=told):
        engine.load_adapter("a", str(folder))
    assert not any(module._forward_hooks for module in model.modules())


def test_twins_of_one_adapter_wait_for_each_other_alone(bench: Adapted) -> None:
    """The same prompt at once: read once for each adapter, never taken from another one."""
    for index, name in enumerate(("one", "one", "two", "two", None, None)):
        bench.submit(f"r{index}", PROMPT, 6, adapter=name)
    bench.drain()
    answers = [bench.answers[f"r{index}"] for index in range(6)]
    assert sorted(answer.cached_tokens or 0 for answer in answers) == [0, 0, 0, 36, 36, 36]
    for name, first, second in (("one", 0, 1), ("two", 2, 3), (None, 4, 5)):
        assert answers[first].token_ids == answers[second].token_ids
        assert bench.is_right(name, PROMPT, answers[first].token_ids)
