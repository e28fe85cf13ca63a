"""Reloading a model's weights while it serves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from prefixcache.config import EngineConfig
from prefixcache.engine import Engine
from prefixcache.errors import AdapterError, EngineError, ModelError
from prefixcache.index import pack
from prefixcache.types import (
    Delta,
    Event,
    Failed,
    FailureKind,
    Finished,
    GenerationRequest,
    Grammar,
    GrammarKind,
    RequestId,
    SamplingParams,
    Started,
)
from tests.support.adapters import merged, write_adapter
from tests.support.architectures import tiny_model
from tests.support.models import Bench, oracle, prompt_ids, write_tiny_model

PROMPT = prompt_ids(37)


class Server:
    """An engine that has loaded a tiny model from a folder whose weights can be changed."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        write_tiny_model(folder)
        self.old, self.new = tiny_model("llama"), self._other_weights()
        defaults: dict[str, Any] = {
            "kv_memory_bytes": 1 << 20,
            "block_size_tokens": 4,
            "weights": "float32",
        }
        config = EngineConfig(model=str(folder), **(defaults | settings))
        self.engine = Engine.load(config, env={})
        self.events: dict[str, list[Event]] = {}

    def _other_weights(self) -> PreTrainedModel:
        model = tiny_model("llama")
        generator = torch.Generator().manual_seed(99)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
        return model

    def reload(self, **options: Any) -> None:
        other = self.folder.with_name("other")
        self.new.save_pretrained(other)
        name = "model.safetensors"  # overwritten in its place, as by a copy
        (self.folder / name).write_bytes((other / name).read_bytes())
        self.engine.reload(**options)

    def submit(self, name: str, prompt: Sequence[int], n_tokens: int = 8, **options: Any) -> None:
        self.events[name] = []
        sampling = SamplingParams(
            max_tokens=n_tokens, ignore_eos=True, grammar=options.pop("grammar", None)
        )
        self.engine.submit(
            GenerationRequest(
                request_id=RequestId(name), token_ids=pack(prompt), sampling=sampling, **options
            )
        )

    def step(self) -> None:
        for event in self.engine.step():
            self.events[event.request_id].append(event)
        self.engine.cache.check()

    def drain(self) -> None:
        for _ in range(1000):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("the engine never comes to an end")

    def run(self, name: str, prompt: Sequence[int], n_tokens: int = 8, **options: Any) -> list[int]:
        self.submit(name, prompt, n_tokens, **options)
        self.drain()
        return self.tokens(name)

    def tokens(self, name: str) -> list[int]:
        return [
            token
            for event in self.events[name]
            if isinstance(event, Delta)
            for token in event.token_ids
        ]

    def cached(self, name: str) -> int:
        return next(e.cached_tokens for e in self.events[name] if isinstance(e, Started))

    def last(self, name: str) -> Event:
        return self.events[name][-1]


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "model")


@pytest.mark.parametrize("weights", ["float32", "auto"])
def test_new_weights_answer_and_match_nothing_old(tmp_path: Path, weights: str) -> None:
    """After a reload the same prompt is read anew and gets the new model's answer."""
    server = Server(tmp_path / "model", weights=weights)
    before = server.engine.info
    old = server.run("old", PROMPT)
    assert server.run("hit", PROMPT) == old
    assert server.cached("hit") == 36
    server.reload()
    server.drain()
    assert not server.engine.is_reloading
    assert server.engine.info.load_id != before.load_id
    assert server.engine.info.pool_blocks == before.pool_blocks
    assert server.engine.info.max_model_tokens == before.max_model_tokens
    new = server.run("new", PROMPT)
    assert server.cached("new") == 0
    assert new != old
    assert server.run("again", PROMPT) == new
    assert server.cached("again") == 36
    if weights == "float32":
        assert oracle(server.new, PROMPT, 8).is_same(new)


def test_who_has_begun_ends_with_the_old_weights(server: Server) -> None:
    """Running requests are finished first; who waits, and who comes meanwhile, has the new ones."""
    server.submit("running", PROMPT, 12)
    server.step()
    server.submit("waiting", PROMPT[:30], 12)
    server.reload()
    server.submit("later", PROMPT, 12)
    server.step()
    assert server.engine.is_reloading
    assert not server.events["waiting"]
    server.drain()
    assert oracle(server.old, PROMPT, 12).is_same(server.tokens("running"))
    assert oracle(server.new, PROMPT[:30], 12).is_same(server.tokens("waiting"))
    assert oracle(server.new, PROMPT, 12).is_same(server.tokens("later"))
    assert server.engine.stats().pool.held == 0


def test_preempted_requests_end_with_the_old_weights(tmp_path: Path) -> None:
    """One that waits to go on has begun: it is admitted again before the new weights serve."""
    block_bytes = 4 * 3 * 2 * 16 * 2 * 4
    server = Server(tmp_path / "model", kv_memory_bytes=24 * block_bytes)
    prompts = {name: prompt_ids(24, seed=index) for index, name in enumerate("abc")}
    for name, prompt in prompts.items():
        server.submit(name, prompt, 24)
    while not server.engine.stats().preemptions_total:
        server.step()
    server.reload()
    server.submit("later", PROMPT, 8)
    server.drain()
    for name, prompt in prompts.items():
        assert oracle(server.old, prompt, 24).is_same(server.tokens(name))
    assert oracle(server.new, PROMPT, 8).is_same(server.tokens("later"))


def test_without_draining_running_requests_fail_at_once(server: Server) -> None:
    """Whoever has begun is told to send it again; who waits is served with the new weights."""
    server.submit("running", PROMPT, 400)
    server.step()
    server.submit("waiting", PROMPT, 8)
    server.reload(drains=False)
    server.drain()
    failed = server.last("running")
    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.CANCELLED
    assert "reloaded" in failed.message
    assert oracle(server.new, PROMPT, 8).is_same(server.tokens("waiting"))
    assert server.cached("waiting") == 0


def test_adapters_are_there_after_a_reload(server: Server, tmp_path: Path) -> None:
    """Adapters are loaded for the new weights, each as a load of its own."""
    folder = write_adapter(tmp_path / "adapter", server.old)
    server.engine.load_adapter("a", str(folder))
    before = server.engine.info.adapters[0]
    server.run("old", PROMPT, adapter="a")
    server.submit("running", PROMPT, 10, adapter="a")
    server.step()
    server.submit("waiting", PROMPT, 10, adapter="a")
    server.reload()
    server.drain()
    assert oracle(merged(server.old, folder), PROMPT, 10).is_same(server.tokens("running"))
    assert oracle(merged(server.new, folder), PROMPT, 10).is_same(server.tokens("waiting"))
    assert server.cached("waiting") == 0
    after = server.engine.info.adapters[0]
    assert (after.name, after.load_id == before.load_id) == ("a", False)


def test_a_request_whose_adapter_is_gone_by_then_fails_by_name(
    server: Server, tmp_path: Path
) -> None:
    """It waited with an adapter that was taken away; the new model has none to give it."""
    server.engine.load_adapter("a", str(write_adapter(tmp_path / "adapter", server.old)))
    server.submit("waiting", PROMPT, 4, adapter="a")
    server.engine.unload_adapter("a")
    server.reload()
    server.drain()
    failed = server.last("waiting")
    assert isinstance(failed, Failed)
    assert failed.kind is FailureKind.INVALID


def test_grammars_that_are_compiled_meanwhile_serve_the_new_weights(server: Server) -> None:
    """A request that waits for its grammar has not begun."""
    server.submit("grammar", PROMPT, 4, grammar=Grammar(GrammarKind.REGEX, "[a-z]+"))
    server.reload()
    server.drain()
    assert isinstance(server.last("grammar"), Finished)
    assert server.run("hit", PROMPT, 4) is not None
    assert server.cached("hit") == 36


def test_adapters_do_not_change_during_a_reload(server: Server, tmp_path: Path) -> None:
    """They would be lost with the old weights; a second reload is refused as well."""
    folder = write_adapter(tmp_path / "adapter", server.old)
    server.submit("running", PROMPT, 10)
    server.step()
    server.reload()
    with pytest.raises(EngineError, match="being reloaded"):
        server.engine.load_adapter("a", str(folder))
    with pytest.raises(EngineError, match="being reloaded"):
        server.engine.reload()
    server.drain()
    server.engine.load_adapter("a", str(folder))


def test_a_reload_that_fails_leaves_all_as_it_was(server: Server, tmp_path: Path) -> None:
    """Another architecture, broken files or an adapter that is gone: the old weights go on."""
    folder = write_adapter(tmp_path / "adapter", server.old)
    server.engine.load_adapter("a", str(folder))
    first = server.run("first", PROMPT)
    (folder / "adapter_config.json").rename(folder / "elsewhere")
    with pytest.raises(AdapterError):
        server.reload()
    tiny_model("qwen3").save_pretrained(server.folder)
    with pytest.raises(ModelError, match="layout"):
        server.engine.reload()
    (server.folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelError):
        server.engine.reload()
    assert not server.engine.is_reloading
    assert server.run("again", PROMPT) == first
    assert server.cached("again") == 36


def test_models_from_memory_cannot_be_reloaded() -> None:
    """There is no file to read; the message says so."""
    with pytest.raises(EngineError, match="memory"):
        Bench().engine.reload()


def test_who_waits_through_a_reload_keeps_nothing_under_the_old_name(tmp_path: Path) -> None:
    """A lasting tier that is asked with the old weights again has nothing that the new computed."""
    folder, disk = tmp_path / "model", str(tmp_path / "kv")
    server = Server(folder, disk=disk, disk_bytes=1 << 22, tier_loading="always")
    old_file = (folder / "model.safetensors").read_bytes()
    server.submit("begun", prompt_ids(20, seed=5), 20)
    server.step()
    server.submit("waits", PROMPT)
    server.reload()
    server.step()
    assert server.engine.is_reloading
    server.drain()
    assert oracle(server.new, PROMPT, 8).is_same(server.tokens("waits"))
    assert server.engine.flush(10)
    server.engine.close()
    again = Server(folder, disk=disk, disk_bytes=1 << 22, tier_loading="always")
    assert (folder / "model.safetensors").read_bytes() == old_file
    tokens = again.run("again", PROMPT)
    assert again.cached("again") == 0
    assert oracle(again.old, PROMPT, 8).is_same(tokens)
    again.engine.close()
