"""A whole plan: everything that is asked about one model, as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prefixcache.errors import ConfigError
from prefixcache.plan.devices import Device
from prefixcache.plan.fit import Fit, Room, fit
from prefixcache.plan.formats import KvFormat
from prefixcache.plan.memory import (
    Load,
    load_bytes,
    long_token_bytes,
    mistaken_bytes,
    token_bytes,
    unwindowed_bytes,
)
from prefixcache.plan.replays import ReplayRow
from prefixcache.plan.shape import ModelShape
from prefixcache.plan.weights import Weights
from prefixcache.plan.work import Reading, mean_reading, reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked. Devices are filled for the first context and format."""

    contexts: Sequence[int]  # tokens of one request, prompt and output together
    formats: Sequence[KvFormat]
    requests: int = 1  # at once
    shared_tokens: int = 0  # leading ones that they have in common
    devices: Mapping[str, Device] = field(default_factory=dict)
    room: Room = field(default_factory=Room)
    replays: Sequence[ReplayRow] = ()

    def __post_init__(self) -> None:
        if not (self.contexts and self.formats):
            raise ConfigError("contexts", list(self.contexts), "name at least one, and a format")
        if self.shared_tokens > min(self.contexts):
            reason = f"must be at most the shortest context's {min(self.contexts)} tokens"
            raise ConfigError("shared_tokens", self.shared_tokens, reason)


@dataclass(frozen=True, slots=True)
class KvRow:
    """KV of one length of request in one format, in bytes."""

    kv_format: str
    context_tokens: int
    token: int  # of each token
    long_token: int  # of each token once every window is full
    request: int
    mistaken: int  # of a request, were there no grouped heads or latents
    unwindowed: int  # of a request, were all its positions kept
    together: int  # all requests, what they share counted once
    apart: int  # all requests, each with all of its own


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device that is filled with requests of the first kind; `fit` is None where none fits."""

    device: str
    label: str
    fit: Fit | None


@dataclass(frozen=True, slots=True)
class ReplayedRow:
    """One row of a replay, with what its capacity costs in the first format."""

    row: ReplayRow
    kv_bytes: int | None  # None: unlimited
    reading: Reading | None  # of its mean prompt; None: it had none


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer."""

    shape: ModelShape
    weights: Weights
    question: Question
    kv: list[KvRow]
    reading: Reading
    devices: list[DeviceRow]
    replays: list[ReplayedRow]


def make_plan(shape: ModelShape, weights: Weights, question: Question) -> Plan:
    """Answer a question about a model. Raises ConfigError for loads that make no sense."""
    return Plan(
        shape,
        weights,
        question,
        list(_kv_rows(shape, question)),
        reading(shape, weights.active, question.contexts[0], question.shared_tokens),
        list(_device_rows(shape, weights, question)),
        [_replayed(row, shape, weights, question.formats[0]) for row in question.replays],
    )


def _kv_rows(shape: ModelShape, question: Question) -> Iterator[KvRow]:
    for kept in question.formats:
        for context in question.contexts:
            alone = load_bytes(shape, kept, Load(context_tokens=context))
            yield KvRow(
                kept.name,
                context,
                token_bytes(shape, kept),
                long_token_bytes(shape, kept),
                alone,
                mistaken_bytes(shape, kept, context),
                unwindowed_bytes(shape, kept, context),
                load_bytes(shape, kept, _load(question, context)),
                alone * question.requests,
            )


def _device_rows(shape: ModelShape, weights: Weights, question: Question) -> Iterator[DeviceRow]:
    load = _load(question, question.contexts[0])
    for name, device in question.devices.items():
        found = fit(name, device, shape, weights.n_bytes, question.formats[0], load, question.room)
        yield DeviceRow(name, device.label, found)


def _load(question: Question, context: int) -> Load:
    return Load(
        context_tokens=context,
        requests=question.requests,
        shared_tokens=question.shared_tokens,
    )


def _replayed(row: ReplayRow, shape: ModelShape, weights: Weights, kept: KvFormat) -> ReplayedRow:
    kv_bytes = None
    if row.capacity_blocks is not None:
        kv_bytes = row.capacity_blocks * row.block_tokens * token_bytes(shape, kept)
    return ReplayedRow(row, kv_bytes, mean_reading(shape, weights.active, row))
