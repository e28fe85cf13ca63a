"""A worker that is sent what it should not be."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
from msgspec import structs

from prefixcache import wire
from prefixcache.config import EngineConfig
from prefixcache.engine import worker
from prefixcache.index import pack
from prefixcache.types import (
    Delta,
    GenerationRequest,
    RequestId,
    SamplingParams,
)
from tests.support.models import (
    Bench,
    prompt_ids,
    write_tiny_model,
)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        yield ours, theirs


def receive(frames: BinaryIO) -> wire.ToGateway:
    length = wire.payload_length(frames.read(wire.HEADER.size))
    return wire.decode_to_gateway(frames.read(length))


@pytest.mark.parametrize("message", ["again", "odd"])
def test_worker_outlives_a_bad_submit(
    message: str, ends: tuple[socket.socket, socket.socket]
) -> None:
    """A second request with an id in flight, or one with extreme settings, harms no other."""
    ours, theirs = ends
    bench = Bench()
    params = SamplingParams(max_tokens=60)
    good = GenerationRequest(
        request_id=RequestId("good"), token_ids=pack(prompt_ids(5)), sampling=params
    )
    odd = structs.replace(
        good, request_id=RequestId("odd"), sampling=SamplingParams(temperature=1e-50)
    )
    ours.sendall(
        wire.encode(wire.Submit(good))
        + wire.encode(wire.Submit(good if message == "again" else odd))
    )
    thread = threading.Thread(target=worker.Worker(worker.Connection(theirs), bench.engine).run)
    thread.start()
    n_tokens, frames = 0, ours.makefile("rb")
    while n_tokens < 60:
        step = receive(frames)
        assert isinstance(step, wire.Step)
        n_tokens += sum(isinstance(e, Delta) and e.request_id == "good" for e in step.events)
    ours.sendall(wire.encode(wire.Stop()))
    thread.join(10)
    assert not thread.is_alive()


def test_worker_ends_quietly_when_the_gateway_goes_while_it_loads(
    tmp_path: Path, ends: tuple[socket.socket, socket.socket]
) -> None:
    """A gateway that is gone before the model is there is an end, not an error."""
    ours, theirs = ends
    write_tiny_model(tmp_path)
    settings = EngineConfig(model=str(tmp_path), kv_memory_bytes=1 << 20)
    ours.sendall(wire.encode(wire.Start(settings)))
    ours.close()
    assert worker.serve(worker.Connection(theirs), {}) in (0, 1)
