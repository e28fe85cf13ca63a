"""Bytes of KV: of a token, of a request, of many requests that begin alike."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from prefixcache.errors import ConfigError
from prefixcache.plan.formats import KvFormat
from prefixcache.plan.shape import DEFAULT_BLOCK_TOKENS, ModelShape

_STATE_BYTES = 4  # recurrent states are sums over the whole prompt and are kept in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is to be served at one moment."""

    context_tokens: int  # of each request, prompt and output together
    requests: int = 1
    shared_tokens: int = 0  # leading ones that all requests have in common, kept once
    block_tokens: int = DEFAULT_BLOCK_TOKENS

    def __post_init__(self) -> None:
        for setting in ("context_tokens", "requests", "block_tokens"):
            if getattr(self, setting) < 1:
                raise ConfigError(setting, getattr(self, setting), "must be at least 1")
        if not 0 <= self.shared_tokens <= self.context_tokens:
            reason = f"must be from 0 to the context's {self.context_tokens} tokens"
            raise ConfigError("shared_tokens", self.shared_tokens, reason)


def token_bytes(shape: ModelShape, kept: KvFormat) -> int:
    """Return the KV bytes of one more token while no window is full."""
    return ceil(kept.bytes_of(sum(layer.numbers_per_token for layer in shape.layers)))


def long_token_bytes(shape: ModelShape, kept: KvFormat) -> int:
    """Return the KV bytes of one more token once every window is full."""
    numbers = (each.numbers_per_token for each in shape.layers if each.window_tokens is None)
    return ceil(kept.bytes_of(sum(numbers)))


def state_bytes(shape: ModelShape) -> int:
    """Return the bytes of a request's recurrent states, which no prefix can share."""
    return _STATE_BYTES * sum(layer.state_numbers for layer in shape.layers)


def load_bytes(shape: ModelShape, kept: KvFormat, load: Load) -> int:
    """Return the KV bytes of a load. A shared prefix counts once, where its tokens are still seen.

    Whole blocks of it are shared; what a window has left behind is kept by nobody.
    """
    n_shared = load.shared_tokens // load.block_tokens * load.block_tokens
    numbers = 0
    for layer in shape.layers:
        each = layer.kept_tokens(load.context_tokens, load.block_tokens)
        common = min(layer.shareable_tokens(load.context_tokens, n_shared), each)
        n_tokens = load.requests * each - (load.requests - 1) * common
        numbers += n_tokens * layer.numbers_per_token
    return ceil(kept.bytes_of(numbers)) + load.requests * state_bytes(shape)


def mistaken_bytes(shape: ModelShape, kept: KvFormat, n_tokens: int) -> int:
    """Return what a request seems to need if every query head is taken to have its own KV."""
    numbers = sum(layer.unshared_numbers_per_token for layer in shape.layers)
    return ceil(kept.bytes_of(numbers * n_tokens))


def unwindowed_bytes(shape: ModelShape, kept: KvFormat, n_tokens: int) -> int:
    """Return what a request needs where windows are ignored and all positions are kept."""
    numbers = sum(layer.numbers_per_token for layer in shape.layers)
    return ceil(kept.bytes_of(numbers * n_tokens)) + state_bytes(shape)


def share_on_each(shape: ModelShape, n_devices: int) -> Fraction:
    """Return which part of the KV each of several devices keeps when heads are split over them.

    Heads do not split further than there are: with more devices some keep the same ones.
    """
    return Fraction(1, min(n_devices, max(shape.kv_heads, 1)))
