"""KV memory of a model by its configuration: what a token costs, and what fits where."""

from prefixcache.plan.answer import DeviceRow, Plan, Question, ReplayedRow, make_plan
from prefixcache.plan.catalogue import known_models
from prefixcache.plan.devices import Device, known_devices, read_devices
from prefixcache.plan.fit import Fit, Room, fit
from prefixcache.plan.formats import FORMATS, KvFormat, format_of, kv_format
from prefixcache.plan.memory import (
    Load,
    load_bytes,
    long_token_bytes,
    mistaken_bytes,
    state_bytes,
    token_bytes,
    unwindowed_bytes,
)
from prefixcache.plan.reading import read_config, read_shape, shape_of
from prefixcache.plan.replays import ReplayRow, read_replay
from prefixcache.plan.shape import Layer, LayerKind, ModelShape
from prefixcache.plan.weights import WEIGHT_BITS, Weights, weights_of
from prefixcache.plan.work import USUAL_EFFICIENCY, Reading, mean_reading, reading

__all__ = [
    "FORMATS",
    "USUAL_EFFICIENCY",
    "WEIGHT_BITS",
    "Device",
    "DeviceRow",
    "Fit",
    "KvFormat",
    "Layer",
    "LayerKind",
    "Load",
    "ModelShape",
    "Plan",
    "Question",
    "Reading",
    "ReplayRow",
    "ReplayedRow",
    "Room",
    "Weights",
    "fit",
    "format_of",
    "known_devices",
    "known_models",
    "kv_format",
    "load_bytes",
    "long_token_bytes",
    "make_plan",
    "mean_reading",
    "mistaken_bytes",
    "read_config",
    "read_devices",
    "read_replay",
    "read_shape",
    "reading",
    "shape_of",
    "state_bytes",
    "token_bytes",
    "unwindowed_bytes",
    "weights_of",
]
