"""The worker process: a real engine behind a real socket."""

from __future__ import annotations

import fcntl
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from prefixcache.config import EngineConfig
from prefixcache.control import Invalidation, InvalidationKind, Publication, TenantQuota
from prefixcache.engine.default_model import DEFAULT_MODEL
from prefixcache.index import pack
from prefixcache.types import (
    Delta,
    Event,
    Failed,
    FailureKind,
    Finished,
    GenerationRequest,
    RequestId,
    SamplingParams,
    Started,
)
from prefixcache.wire import (
    HEADER,
    Answer,
    Cancel,
    Change,
    Changed,
    ChangeRefused,
    Done,
    Heartbeat,
    Inspect,
    Inspected,
    Invalidate,
    LoadAdapter,
    Progress,
    PromptRead,
    Publish,
    Ready,
    Reload,
    Retire,
    SetQuotas,
    Start,
    StartFailed,
    Step,
    Stop,
    Submit,
    ToGateway,
    ToWorker,
    UnloadAdapter,
    decode_to_gateway,
    encode,
    payload_length,
)
from tests.support.adapters import write_adapter
from tests.support.architectures import tiny_model
from tests.support.models import prompt_ids, write_tiny_model


class Gateway:
    """The other end of a worker's socket, one message at a time."""

    def __init__(self, folder: Path) -> None:
        path = folder / "worker.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(1)
            listener.settimeout(60)
            command = [sys.executable, "-m", "prefixcache.engine.worker", "--socket", str(path)]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
            self.stream, _ = listener.accept()
        self.stream.settimeout(60)

    def send(self, message: ToWorker) -> None:
        self.stream.sendall(encode(message))

    def receive(self) -> ToGateway:
        payload = self._exactly(payload_length(self._exactly(HEADER.size)))
        return decode_to_gateway(payload)

    def _exactly(self, n_bytes: int) -> bytes:
        parts = b""
        while len(parts) < n_bytes:
            part = self.stream.recv(n_bytes - len(parts))
            assert part, "the worker closed"
            parts += part
        return parts

    def start(self, model: Path, **settings: Any) -> ToGateway:
        config = EngineConfig(model=str(model), kv_memory_bytes=1 << 20, threads=1, **settings)
        self.send(Start(config))
        while isinstance(message := self.receive(), Progress):
            pass
        return message

    def events(self, name: str) -> Iterator[tuple[Event, Step]]:
        """Yield a request's events, with the step that brought them, up to its end."""
        while True:
            while isinstance(step := self.receive(), Heartbeat):
                pass
            assert isinstance(step, Step)
            for event in step.events:
                if event.request_id == name:
                    yield event, step
                    if isinstance(event, Finished | Failed):
                        return

    def close(self) -> int:
        self.stream.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(timeout=60)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return folder


@pytest.fixture
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for models; named before `gateway`, its worker keeps them there."""
    monkeypatch.setenv("PREFIXCACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    gateway = Gateway(tmp_path)
    try:
        yield gateway
    finally:
        gateway.stream.close()
        gateway.process.kill()
        gateway.process.wait(timeout=60)


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Gateway]:
    """The other end of a worker that serves the tiny model, for tests that leave it doing so."""
    gateway = Gateway(tmp_path_factory.mktemp("worker"))
    try:
        assert isinstance(gateway.start(model_folder), Ready)
        yield gateway
    finally:
        gateway.stream.close()
        gateway.process.kill()
        gateway.process.wait(timeout=60)


def request(name: str, n_prompt: int = 40, n_tokens: int = 5) -> Submit:
    return Submit(
        GenerationRequest(
            request_id=RequestId(name),
            token_ids=pack(prompt_ids(n_prompt)),
            sampling=SamplingParams(max_tokens=n_tokens, ignore_eos=True),
        )
    )


def test_requests_are_served_and_the_second_hits(gateway: Gateway, model_folder: Path) -> None:
    """A prompt sent twice is read once; the step says what the pool holds."""
    ready = gateway.start(model_folder)
    assert isinstance(ready, Ready)
    assert ready.model.folder == str(model_folder)
    usages = []
    for name in ("first", "second"):
        gateway.send(request(name))
        events = list(gateway.events(name))
        tokens = [t for event, _ in events if isinstance(event, Delta) for t in event.token_ids]
        assert len(tokens) == 5
        last, step = events[-1]
        assert isinstance(last, Finished)
        assert step.stats.pool.held == 0
        usages.append(last.usage.cached_tokens)
    assert usages == [0, 32]  # whole blocks of 16
    gateway.send(Stop())
    assert gateway.process.stdout is not None
    assert gateway.process.stdout.read() == b""  # whatever libraries print goes elsewhere
    assert gateway.close() == 0


def test_a_restarted_worker_finds_its_prefixes_on_the_disk(
    tmp_path: Path, model_folder: Path
) -> None:
    """What one worker wrote before it was told to stop, the next one reads; its folder is free."""
    found = []
    for number in range(2):
        (folder := tmp_path / f"{number}").mkdir()
        gateway = Gateway(folder)
        disk = str(tmp_path / "disk")
        assert isinstance(gateway.start(model_folder, disk=disk, tier_loading="always"), Ready)
        gateway.send(request("r"))
        events = [event for event, _ in gateway.events("r")]
        assert isinstance(events[0], Started)
        found.append((events[0].cached_tokens, events[0].tier_tokens))
        gateway.send(Stop())
        assert gateway.close() == 0
    assert found == [(0, {}), (32, {"disk": 32})]


def test_cancelled_request_ends_and_releases(serving: Gateway) -> None:
    """A cancel on the wire ends the request within a step, with nothing held."""
    serving.send(request("long", n_tokens=400))
    events = serving.events("long")
    next(events)
    serving.send(Cancel(RequestId("long")))
    last, step = list(events)[-1]
    assert isinstance(last, Failed)
    assert last.kind is FailureKind.CANCELLED
    assert step.stats.pool.held == 0


def test_worker_ends_with_its_gateway(gateway: Gateway, model_folder: Path) -> None:
    """When the socket closes, in the middle of a request too, the process goes."""
    gateway.start(model_folder)
    gateway.send(request("long", n_tokens=400))
    next(gateway.events("long"))
    assert gateway.close() == 0


@pytest.mark.parametrize("word", ["nothing", "stop"])
def test_worker_that_loads_ends_with_its_gateway(
    cache_home: Path, gateway: Gateway, word: str
) -> None:
    """A load that would take for ever ends with the connection, or when it is told to stop."""
    with (cache_home / f".{DEFAULT_MODEL}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as somebody who prepares the model
        gateway.send(Start(EngineConfig(kv_memory_bytes=1 << 20)))
        while not (isinstance(message := gateway.receive(), Progress) and "wait" in message.text):
            pass
        if word == "stop":
            gateway.send(Stop())
            gateway.stream.shutdown(socket.SHUT_WR)
        assert gateway.close() in (0, -signal.SIGKILL)


def test_model_that_cannot_load_is_reported(gateway: Gateway, tmp_path: Path) -> None:
    """A start that fails says why, in a message, and the process ends."""
    reply = gateway.start(tmp_path / "nothing here")
    assert isinstance(reply, StartFailed)
    assert "nothing here" in reply.message
    assert gateway.close() == 1


def answer_to(gateway: Gateway, change: Change) -> Answer:
    gateway.send(change)
    while not isinstance(message := gateway.receive(), Answer):
        pass
    assert message.change_id == change.change_id
    return message


def with_adapter(name: str, adapter: str | None, n_tokens: int = 5) -> Submit:
    return Submit(structs.replace(request(name, n_tokens=n_tokens).request, adapter=adapter))


def outcome(gateway: Gateway, name: str) -> tuple[list[int], Finished | Failed]:
    events = [event for event, _ in gateway.events(name)]
    last = events[-1]
    assert isinstance(last, Finished | Failed)
    return [t for each in events if isinstance(each, Delta) for t in each.token_ids], last


def test_adapters_come_and_go_over_the_wire(serving: Gateway, tmp_path: Path) -> None:
    """A worker loads, reloads and unloads adapters while it serves, and refuses by name."""
    folder = write_adapter(tmp_path / "adapter", tiny_model("llama"))
    loaded = answer_to(serving, LoadAdapter(1, "a", str(folder)))
    assert isinstance(loaded, Changed)
    assert [adapter.name for adapter in loaded.model.adapters] == ["a"]
    found = {}
    for name, adapter in (("plain", None), ("first", "a"), ("hit", "a")):
        serving.send(with_adapter(name, adapter))
        tokens, last = outcome(serving, name)
        assert isinstance(last, Finished)
        found[name] = tokens, last.usage.cached_tokens
    assert found["first"] == (found["hit"][0], 0)
    assert found["hit"][1] == 32
    assert found["plain"][0] != found["first"][0]
    write_adapter(folder, tiny_model("llama"), seed=9)
    answer_to(serving, LoadAdapter(2, "a", str(folder)))
    serving.send(with_adapter("new", "a"))
    tokens, last = outcome(serving, "new")
    assert isinstance(last, Finished)
    assert (tokens != found["first"][0], last.usage.cached_tokens) == (True, 0)
    assert isinstance(answer_to(serving, UnloadAdapter(3, "a")), Changed)
    refused = answer_to(serving, UnloadAdapter(4, "a"))
    assert isinstance(refused, ChangeRefused)
    assert "'a'" in refused.message
    serving.send(with_adapter("gone", "a"))
    assert isinstance(outcome(serving, "gone")[1], Failed)
    bad = answer_to(serving, LoadAdapter(5, "b", str(tmp_path / "nowhere")))
    assert isinstance(bad, ChangeRefused)
    assert "nowhere" in bad.message


def test_weights_are_reloaded_over_the_wire(gateway: Gateway, tmp_path: Path) -> None:
    """Running requests end with the old weights; the answer comes when the new ones serve."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_tiny_model(folder)
    ready = gateway.start(folder)
    assert isinstance(ready, Ready)
    gateway.send(request("old"))
    old, _ = outcome(gateway, "old")
    gateway.send(request("running", n_tokens=60))
    next(gateway.events("running"))
    model = tiny_model("llama")
    for parameter in model.parameters():
        parameter.data = parameter.data.flip(0)
    model.save_pretrained(folder)
    gateway.send(Reload(7))
    ended = None
    while not isinstance(message := gateway.receive(), Changed | ChangeRefused):
        for event in message.events if isinstance(message, Step) else ():
            ended = event if isinstance(event, Finished) else ended
    assert isinstance(message, Changed)
    assert ended is not None
    assert ended.usage.output_tokens == 60
    assert message.model.load_id != ready.model.load_id
    gateway.send(request("new"))
    new, last = outcome(gateway, "new")
    assert isinstance(last, Finished)
    assert last.usage.cached_tokens == 0
    assert new != old
    (folder / "model.safetensors").write_bytes(b"broken")
    refused = answer_to(gateway, Reload(8))
    assert isinstance(refused, ChangeRefused)
    gateway.send(request("again"))
    assert outcome(gateway, "again")[0] == new


def publication(prompt_id: str, n_tokens: int = 40) -> Publication:
    tokens = pack(prompt_ids(n_tokens))
    return Publication(prompt_id=prompt_id, name="n", version=1, token_ids=tokens)


def cached(gateway: Gateway, name: str) -> int:
    gateway.send(request(name, n_prompt=44))
    last = outcome(gateway, name)[1]
    assert isinstance(last, Finished)
    return last.usage.cached_tokens


def test_each_order_of_an_operator_is_answered_once(serving: Gateway) -> None:
    """Prompts are published and retired, all is invalidated, shared out and shown over the wire."""
    read = answer_to(serving, Publish(1, publication("p")))
    assert isinstance(read, PromptRead)
    assert read.state.cached_tokens == 32
    assert isinstance(answer_to(serving, Publish(2, publication("p"))), ChangeRefused)
    assert isinstance(answer_to(serving, Publish(3, publication("q", 15))), ChangeRefused)
    assert cached(serving, "hit") == 40
    assert isinstance(answer_to(serving, Retire(4, "p")), Done)
    everything = Invalidation(kind=InvalidationKind.EVERYTHING)
    assert isinstance(answer_to(serving, Invalidate(5, everything)), Done)
    assert cached(serving, "miss") == 0
    quotas = {"t": TenantQuota(reserved_tokens=10**9)}
    refused = answer_to(serving, SetQuotas(6, quotas))
    assert isinstance(refused, ChangeRefused)
    assert "reserve" in refused.message
    assert isinstance(answer_to(serving, SetQuotas(7, {"t": TenantQuota(weight=2)})), Done)
    shown = answer_to(serving, Inspect(8, 10**9))
    assert isinstance(shown, Inspected)
    assert {tree.tenant for tree in shown.inspection.trees if tree.is_current} == {"default"}
    assert shown.inspection.publications == []


def test_a_publication_that_is_retired_as_it_is_read_is_answered(serving: Gateway) -> None:
    """Whoever waits for it is told before the retirement is; an id may be used after that."""
    serving.send(Publish(1, publication("p", 200)))
    serving.send(Retire(2, "p"))
    serving.send(Publish(3, publication("p", 200)))
    answers: list[Answer] = []
    while len(answers) < 3:
        if isinstance(message := serving.receive(), Answer):
            answers.append(message)
    assert [type(answer) for answer in answers] == [ChangeRefused, Done, PromptRead]
    assert [answer.change_id for answer in answers] == [1, 2, 3]


def test_adapters_that_cannot_load_are_bad_input(gateway: Gateway, model_folder: Path) -> None:
    """A start with an adapter that is not there fails as a wrong setting does, by its name."""
    config = EngineConfig(
        model=str(model_folder), kv_memory_bytes=1 << 20, threads=1, adapters={"a": "/nowhere"}
    )
    gateway.send(Start(config))
    while isinstance(message := gateway.receive(), Progress):
        pass
    assert isinstance(message, StartFailed)
    assert message.is_bad_input
    assert "'a'" in message.message
