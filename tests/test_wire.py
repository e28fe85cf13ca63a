"""Frames between gateway and worker."""

from __future__ import annotations

import socket

import msgspec
import pytest

from prefixcache import wire
from prefixcache.config import EngineConfig
from prefixcache.control import (
    Inspection,
    Invalidation,
    InvalidationKind,
    NodeShown,
    Publication,
    PublicationState,
    TenantQuota,
    TenantShown,
    TreeShown,
)
from prefixcache.errors import WireError
from prefixcache.types import (
    AdapterInfo,
    Delta,
    EngineStats,
    Failed,
    FailureKind,
    Finished,
    FinishReason,
    GenerationRequest,
    ModelInfo,
    PoolCounts,
    RequestId,
    Retain,
    SamplingParams,
    Started,
    Usage,
)

ID = RequestId("request-1")
REQUEST = GenerationRequest(
    request_id=ID,
    token_ids=b"\x01\x00\x00\x00\xff\xff\xff\xff",
    sampling=SamplingParams(
        max_tokens=7,
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        seed=-(2**63),
        stop=("a", "\u00e4\U0001f600"),
        stop_token_ids=(4, 5),
        ignore_eos=True,
    ),
    tenant="t",
    salt="s",
    adapter="a",
    read_cache=False,
    store_cache=False,
    retain=(Retain(16, 300.0), Retain(4, 3600.5)),
)
STATS = EngineStats(
    pool=PoolCounts(free=1, cached=2, held=3),
    running=4,
    waiting=5,
    steps_total=6,
    prompt_tokens_total=7,
    cached_tokens_total=8,
    computed_tokens_total=9,
    output_tokens_total=10,
    evicted_blocks_total=11,
    preemptions_total=2**40,
    misses={"diverged": 3},
)
INFO = ModelInfo(
    name="m",
    folder="/f",
    vocab_size=1,
    max_model_tokens=2,
    eos_token_ids=(3, 4),
    kv_bytes_per_token=5,
    pool_blocks=6,
    block_size_tokens=7,
    dtype="float32",
    weights="float32",
    device="cpu",
    load_id="l",
    adapters=(AdapterInfo(name="a", folder="/a", rank=8, n_layers=9, load_id="m"),),
)
EVENTS = (
    Started(ID, 5, 4),
    Delta(ID, "\u00e4\n", (1, 2**32 - 1)),
    Finished(ID, FinishReason.LENGTH, Usage(5, 4, 3, 1)),
    Finished(ID, FinishReason.STOP, Usage(5, 4, 3), "\u00e4\n"),
    Failed(ID, FailureKind.TOO_LARGE, "too large"),
    Failed(ID, FailureKind.CANCELLED, "gone", Usage(1, 0, 0)),
)
PUBLICATION = Publication(
    prompt_id="p",
    name="\u00e4",
    version=3,
    token_ids=b"\x01\x00\x00\x00",
    tenants=("a", "b"),
    adapter="x",
    pin=False,
)
STATE = PublicationState(prompt_id="p", n_tokens=40, cached_tokens=32)
INSPECTION = Inspection(
    trees=[
        TreeShown(
            tenant="t",
            adapter=None,
            has_salt=True,
            is_current=False,
            published="name 3",
            nodes=[
                NodeShown(
                    id=0,
                    parent=None,
                    start_token=0,
                    n_tokens=16,
                    pins=1,
                    is_retained=True,
                    hits=2,
                    idle_seconds=None,
                )
            ],
        )
    ],
    is_complete=False,
    tenants=[
        TenantShown(
            tenant="t",
            cached_tokens=1,
            held_tokens=2,
            retained_tokens=3,
            reserved_tokens=4,
            max_tokens=5,
            requests_total=6,
            prompt_tokens_total=7,
            hit_tokens_total=8,
            evicted_tokens_total=9,
            misses={"evicted": 10},
        )
    ],
    publications=[STATE],
    pool=PoolCounts(free=1, cached=2, held=3),
    longest_free_run=4,
    block_size_tokens=16,
    kv_bytes_per_token=5,
)
TO_WORKER: list[wire.ToWorker] = [
    wire.Start(EngineConfig(model="x", dtype="float16", adapters={"a": "b"}, kv_memory_bytes=9)),
    wire.Submit(REQUEST),
    wire.Cancel(ID),
    wire.LoadAdapter(2**40, "a", "/folder"),
    wire.UnloadAdapter(3, "\u00e4"),
    wire.Reload(4, drains=False),
    wire.Publish(5, PUBLICATION, stands=True),
    wire.Retire(6, "p"),
    wire.Invalidate(7, Invalidation(kind=InvalidationKind.TENANT, name="t")),
    wire.SetQuotas(8, {"t": TenantQuota(reserved_tokens=9, max_tokens=10, weight=0.5)}),
    wire.Inspect(9, 10, "t"),
    wire.Stop(),
]
TO_GATEWAY: list[wire.ToGateway] = [
    wire.Progress("half way"),
    wire.Ready(INFO),
    wire.StartFailed("no such model"),
    wire.Step(EVENTS, STATS),
    wire.Changed(2**40, INFO),
    wire.PromptRead(6, STATE),
    wire.Inspected(7, INSPECTION),
    wire.Done(8),
    wire.ChangeRefused(5, "no such adapter"),
]


def payload_of(frame: bytes) -> bytes:
    header, payload = frame[: wire.HEADER.size], frame[wire.HEADER.size :]
    assert wire.payload_length(header) == len(payload)
    return payload


@pytest.mark.parametrize("message", TO_WORKER, ids=lambda message: type(message).__name__)
def test_messages_reach_the_worker_unchanged(message: wire.ToWorker) -> None:
    """What the gateway says is what the worker reads, every field of it."""
    assert wire.decode_to_worker(payload_of(wire.encode(message))) == message


@pytest.mark.parametrize("message", TO_GATEWAY, ids=lambda message: type(message).__name__)
def test_messages_reach_the_gateway_unchanged(message: wire.ToGateway) -> None:
    """What the worker says is what the gateway reads, every field of it."""
    assert wire.decode_to_gateway(payload_of(wire.encode(message))) == message


@pytest.mark.parametrize("version", [0, wire.VERSION + 1, 255])
def test_another_version_is_refused(version: int) -> None:
    """A peer that speaks another version is told so before its payload is read."""
    with pytest.raises(WireError, match=f"version {version}"):
        wire.payload_length(wire.HEADER.pack(version, 10))


def test_long_payloads_are_refused_before_they_are_read() -> None:
    """The limit itself passes; one byte more does not, whatever the header promises."""
    limit = wire.MAX_FRAME_BYTES
    assert wire.payload_length(wire.HEADER.pack(wire.VERSION, limit)) == limit
    for n_bytes in (limit + 1, 2**32 - 1):
        with pytest.raises(WireError, match=str(n_bytes)):
            wire.payload_length(wire.HEADER.pack(wire.VERSION, n_bytes))


def test_long_messages_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message over the limit fails at its sender, not at its reader."""
    longest = len(payload_of(wire.encode(wire.Progress("x" * 500))))
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", longest)
    wire.encode(wire.Progress("x" * 500))
    with pytest.raises(WireError, match=str(longest + 1)):
        wire.encode(wire.Progress("x" * 501))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x80",
        msgspec.msgpack.encode({"type": "cancel"}),
        msgspec.msgpack.encode({"type": "cancel", "request_id": 5}),
        msgspec.msgpack.encode({"type": "dance", "request_id": "r"}),
        msgspec.msgpack.encode({"type": "progress", "text": 5}),
        msgspec.msgpack.encode({"type": "start", "config": {"no_such_setting": 1}}),
        msgspec.msgpack.encode({"type": "step", "events": [{"type": "delta"}], "stats": {}}),
        msgspec.msgpack.encode({"type": "set_quotas", "change_id": 1, "quotas": {"t": 5}}),
        payload_of(wire.encode(wire.Submit(REQUEST)))[:-1],
        payload_of(wire.encode(wire.Step(EVENTS, STATS)))[:-1],
    ],
)
def test_malformed_payloads_are_refused(payload: bytes) -> None:
    """Neither side takes what it does not understand, nor fails otherwise than by WireError."""
    with pytest.raises(WireError, match="malformed"):
        wire.decode_to_worker(payload)
    with pytest.raises(WireError, match="malformed"):
        wire.decode_to_gateway(payload)


def test_each_side_refuses_the_other_sides_messages() -> None:
    """A worker obeys no worker, and a gateway hears no gateway."""
    for message in TO_GATEWAY:
        with pytest.raises(WireError):
            wire.decode_to_worker(payload_of(wire.encode(message)))
    for order in TO_WORKER:
        with pytest.raises(WireError):
            wire.decode_to_gateway(payload_of(wire.encode(order)))


def test_header_is_as_documented() -> None:
    """One byte of version and four of length, big-endian, before the payload."""
    frame = wire.encode(wire.Stop())
    assert frame[:1] == bytes([wire.VERSION])
    assert int.from_bytes(frame[1:5], "big") == len(frame) - 5


def test_worker_reads_frames_however_they_are_cut() -> None:
    """Frames arrive in any pieces; the end of the connection in the middle of one is the end."""
    from prefixcache.engine.worker import Connection  # torch: not for every test's start

    frames = wire.encode(wire.Submit(REQUEST)) + wire.encode(wire.Cancel(ID))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        connection = Connection(ours)
        theirs.sendall(frames[:3])
        theirs.sendall(frames[3:40])
        theirs.sendall(frames[40:] + wire.encode(wire.Stop())[:-1])
        assert connection.receive() == wire.Submit(REQUEST)
        assert connection.receive() == wire.Cancel(ID)
        theirs.close()
        assert connection.receive() is None


@pytest.mark.parametrize(
    "header",
    [wire.HEADER.pack(wire.VERSION, wire.MAX_FRAME_BYTES + 1), wire.HEADER.pack(9, 1)],
    ids=["long", "version"],
)
def test_worker_refuses_a_header_without_waiting_for_more(header: bytes) -> None:
    """A frame too long or of another version is refused on its header alone."""
    from prefixcache.engine.worker import Connection  # torch: not for every test's start

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        theirs.sendall(header)
        with pytest.raises(WireError):
            Connection(ours).receive()
