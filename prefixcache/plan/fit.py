"""What fits on devices: weights, room to work in, and KV in what is left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor

from prefixcache.errors import ConfigError
from prefixcache.plan.devices import Device
from prefixcache.plan.formats import KvFormat
from prefixcache.plan.memory import Load, load_bytes, share_on_each
from prefixcache.plan.shape import ModelShape

_SIZES = (1, 2, 4, 8, 16, 32)  # devices that heads are usually split over
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How a device's memory is divided."""

    memory_share: float = 0.9  # of a device that a server may use
    step_tokens: int = 2048  # most tokens of one step of the engine
    fixed_bytes: int = 10**9  # the driver's context, kernels and their work space

    def __post_init__(self) -> None:
        if not 0 < self.memory_share <= 1:
            raise ConfigError("memory_share", self.memory_share, "must be above 0 and at most 1")
        if self.step_tokens < 1:
            raise ConfigError("step_tokens", self.step_tokens, "must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A model on a number of equal devices."""

    device: str
    n_devices: int
    weight_bytes: int  # on each
    working_bytes: int  # on each; an estimate
    kv_bytes: int  # left on each
    requests: int  # of the asked length that run at once, 0 for none
    tokens: int  # of one request's kind, in all of them


def fit(
    name: str,
    device: Device,
    shape: ModelShape,
    weight_bytes: int,
    kept: KvFormat,
    load: Load,
    room: Room,
) -> Fit | None:
    """Return how many requests like those of `load` fit on the fewest devices that hold one.

    None: not even the largest number of devices holds one. Weights are split evenly; KV heads are
    split as far as there are any.
    """
    for n_devices in _SIZES:
        found = _on(n_devices, name, device, shape, weight_bytes, kept, load, room)
        if found.requests:
            return found
    return None


def working_bytes(shape: ModelShape, load: Load, room: Room, n_devices: int) -> int:
    """Return an estimate of what a step needs beside weights and KV, on each device.

    The widest activations of a step's tokens (hidden states in and out, queries, the two halves of
    the feed-forward part), a row of float32 logits for each request, and a fixed part.
    """
    of_a_token = 4 * shape.hidden_size + 2 * shape.intermediate_size // n_devices
    activations = room.step_tokens * of_a_token * max(shape.number_bytes, 2)
    logits = load.requests * shape.vocab_size * _FLOAT_BYTES
    return activations + logits + room.fixed_bytes


def _on(
    n_devices: int,
    name: str,
    device: Device,
    shape: ModelShape,
    weight_bytes: int,
    kept: KvFormat,
    load: Load,
    room: Room,
) -> Fit:
    of_weights = ceil(weight_bytes / n_devices)
    working = working_bytes(shape, load, room, n_devices)
    left = max(floor(device.memory_bytes * room.memory_share) - of_weights - working, 0)
    n_requests = _requests_in(left, shape, kept, load, n_devices)
    return Fit(
        device=name,
        n_devices=n_devices,
        weight_bytes=of_weights,
        working_bytes=working,
        kv_bytes=left,
        requests=n_requests,
        tokens=n_requests * load.context_tokens,
    )


def _requests_in(
    room_bytes: int, shape: ModelShape, kept: KvFormat, load: Load, n_devices: int
) -> int:
    """Return how many requests of a kind fit; each after the first costs the same."""
    share = share_on_each(shape, n_devices)
    one, two = (
        load_bytes(shape, kept, replace(load, requests=n_requests)) * share for n_requests in (1, 2)
    )
    if one > room_bytes:
        return 0
    return 1 + floor((room_bytes - one) / (two - one)) if two > one else load.requests
