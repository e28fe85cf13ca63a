"""Frames between gateway and worker: msgpack over a Unix socket.

    +---------+-----------------+------------------+
    | version | payload length  | msgpack payload  |
    | 1 byte  | 4 bytes, big    | length bytes     |
    +---------+-----------------+------------------+

The payload is one tagged message. Both sides refuse another version and anything longer than
`MAX_FRAME_BYTES`, before they read it.
"""

from __future__ import annotations

import struct

import msgspec

from prefixcache.config import EngineConfig
from prefixcache.control import (
    Inspection,
    Invalidation,
    Publication,
    PublicationState,
    TenantQuota,
)
from prefixcache.errors import WireError
from prefixcache.types import EngineStats, Event, GenerationRequest, ModelInfo, RequestId

VERSION = 5
MAX_FRAME_BYTES = 64 * 1024 * 1024
HEADER = struct.Struct(">BI")


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Gateway to worker, first: load a model and serve, with a Heartbeat so often."""

    config: EngineConfig
    heartbeat_seconds: float = 5.0


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Gateway to worker: queue a request."""

    request: GenerationRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Gateway to worker: end a request. Unknown and finished ids are ignored."""

    request_id: RequestId


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Gateway to worker: load an adapter, or load it again; answered by Changed or ChangeRefused.

    As every change it is answered once. `change_id` is the gateway's own and comes back then.
    """

    change_id: int
    name: str
    folder: str


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Gateway to worker: take an adapter away; answered as LoadAdapter."""

    change_id: int
    name: str


class Reload(msgspec.Struct, frozen=True, tag="reload"):
    """Gateway to worker: read the model's weights again; answered as LoadAdapter, when they serve.

    `drains`: requests that have begun end with the weights that they began with; else they fail.
    """

    change_id: int
    drains: bool = True


class Publish(msgspec.Struct, frozen=True, tag="publish"):
    """Gateway to worker: share a prefix and read it; answered by PromptRead or ChangeRefused.

    The answer comes when it can be matched, after any number of steps. `stands`: it was published
    to an earlier worker, and is never refused for want of room or of its adapter.
    """

    change_id: int
    publication: Publication
    stands: bool = False


class Retire(msgspec.Struct, frozen=True, tag="retire"):
    """Gateway to worker: share a publication no more; answered by Done."""

    change_id: int
    prompt_id: str


class Invalidate(msgspec.Struct, frozen=True, tag="invalidate"):
    """Gateway to worker: match nothing of what was stored; answered by Done or ChangeRefused."""

    change_id: int
    invalidation: Invalidation


class SetQuotas(msgspec.Struct, frozen=True, tag="set_quotas"):
    """Gateway to worker: have these quotas and no others; answered by Done or ChangeRefused."""

    change_id: int
    quotas: dict[str, TenantQuota]


class Inspect(msgspec.Struct, frozen=True, tag="inspect"):
    """Gateway to worker: show the index; answered by Inspected.

    However many nodes are asked for, the answer keeps well within a frame.
    """

    change_id: int
    max_nodes: int
    tenant: str | None = None


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Gateway to worker: end at once; requests in flight fail."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Worker to gateway while it starts: a line for people."""

    text: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Worker to gateway: the model is loaded, requests may come."""

    model: ModelInfo


class StartFailed(msgspec.Struct, frozen=True, tag="start_failed"):
    """Worker to gateway: the model cannot be served; the worker ends.

    `is_bad_input`: what was asked for is at fault, a setting or a model that is not there.
    """

    message: str
    is_bad_input: bool = False


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """Worker to gateway: a change is made; `model` is what is served from now on."""

    change_id: int
    model: ModelInfo


class PromptRead(msgspec.Struct, frozen=True, tag="prompt_read"):
    """Worker to gateway: a publication can be matched."""

    change_id: int
    state: PublicationState


class Inspected(msgspec.Struct, frozen=True, tag="inspected"):
    """Worker to gateway: the index as it is."""

    change_id: int
    inspection: Inspection


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Worker to gateway: a change is made, and there is no more to say of it."""

    change_id: int


class ChangeRefused(msgspec.Struct, frozen=True, tag="change_refused"):
    """Worker to gateway: a change cannot be made; all is as it was."""

    change_id: int
    message: str


class Step(msgspec.Struct, frozen=True, tag="step"):
    """Worker to gateway: what one engine step (or an idle moment) brought."""

    events: tuple[Event, ...]
    stats: EngineStats


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Worker to gateway while it serves, every so often, in the middle of a step too.

    `step_seconds`: how long the present step has taken; 0 between steps.
    """

    step_seconds: float


ModelChange = LoadAdapter | UnloadAdapter | Reload
Change = ModelChange | Publish | Retire | Invalidate | SetQuotas | Inspect
Answer = Changed | PromptRead | Inspected | Done | ChangeRefused
ToWorker = Start | Submit | Cancel | Change | Stop
ToGateway = Progress | Ready | StartFailed | Step | Heartbeat | Answer

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_to_gateway: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)


def encode(message: ToWorker | ToGateway) -> bytes:
    """Return one whole frame.

    Raises:
        WireError: the payload is longer than MAX_FRAME_BYTES.
    """
    payload = _encoder.encode(message)
    if len(payload) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return HEADER.pack(VERSION, len(payload)) + payload


def payload_length(header: bytes) -> int:
    """Return how many payload bytes follow `header` (HEADER.size bytes).

    Raises:
        WireError: another version, or longer than MAX_FRAME_BYTES.
    """
    version, length = HEADER.unpack(header)
    if version != VERSION:
        raise WireError(f"frame version {version}; this side speaks {VERSION}")
    if length > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
    return int(length)


def decode_to_worker(payload: bytes) -> ToWorker:
    """Return the gateway's message. Raises WireError when it is malformed."""
    try:
        return _to_worker.decode(payload)
    except msgspec.MsgspecError as error:
        raise WireError(f"malformed frame for the worker: {error}") from error


def decode_to_gateway(payload: bytes) -> ToGateway:
    """Return the worker's message. Raises WireError when it is malformed."""
    try:
        return _to_gateway.decode(payload)
    except msgspec.MsgspecError as error:
        raise WireError(f"malformed frame for the gateway: {error}") from error
