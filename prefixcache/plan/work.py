"""Arithmetic of reading prompts, and what a cached prefix spares of it."""

from __future__ import annotations

from dataclasses import dataclass

from prefixcache.plan.devices import Device
from prefixcache.plan.replays import ReplayRow
from prefixcache.plan.shape import LayerKind, ModelShape

USUAL_EFFICIENCY = 0.5  # of a device's arithmetic that reading prompts gets

_WITHOUT_PAIRS = frozenset({LayerKind.STATE, LayerKind.NONE})


@dataclass(frozen=True, slots=True)
class Reading:
    """A prompt that is read: all of it, and what is left when its first part is cached."""

    flops: float
    flops_with_cache: float

    @property
    def saved_share(self) -> float:
        """The part of the work that is spared."""
        return 1 - self.flops_with_cache / self.flops

    def seconds(self, device: Device, n_devices: int = 1, *, efficiency: float) -> float:
        """Return how long all of it takes where arithmetic is the limit."""
        return self.flops / (device.flops * n_devices * efficiency)

    def seconds_with_cache(self, device: Device, n_devices: int = 1, *, efficiency: float) -> float:
        """Return how long the rest takes."""
        return self.flops_with_cache / (device.flops * n_devices * efficiency)


def reading(
    shape: ModelShape, active_parameters: int, prompt_tokens: int, cached_tokens: int
) -> Reading:
    """Return the floating-point operations of reading a prompt, without and with a cached prefix.

    Two for each active weight and token, and four for each number of a query head and pair of
    tokens that attend to each other. Source: arXiv:2203.15556, appendix F, forward pass.
    """
    return Reading(
        prefill_flops(shape, active_parameters, 0, prompt_tokens),
        prefill_flops(shape, active_parameters, cached_tokens, prompt_tokens),
    )


def mean_reading(shape: ModelShape, active_parameters: int, row: ReplayRow) -> Reading | None:
    """Return the operations of reading the mean prompt of a replay, without and with its cache.

    They are those of all prompts, over their number. Exact but for layers with a window: of those
    a replay's sums tell no more than that a token sees at most the window, which is what is
    counted where it is less. None: the replay had no prompt.
    """
    if not (row.requests and row.tokens):
        return None
    all_of_it = (row.tokens, row.attention_pairs)
    rest = (row.tokens - row.hit_tokens, row.attention_pairs - row.hit_attention_pairs)
    flops, flops_with_cache = (
        _sum_flops(shape, active_parameters, *part) / row.requests for part in (all_of_it, rest)
    )
    return Reading(flops, flops_with_cache)


def _sum_flops(shape: ModelShape, active_parameters: int, n_tokens: int, n_pairs: int) -> float:
    pairs = sum(
        n_pairs
        if layer.most_seen_tokens is None
        else min(n_pairs, layer.most_seen_tokens * n_tokens)
        for layer in shape.layers
        if layer.kind not in _WITHOUT_PAIRS
    )
    return 2.0 * active_parameters * n_tokens + 4.0 * shape.heads * shape.head_dim * pairs


def prefill_flops(shape: ModelShape, active_parameters: int, start: int, stop: int) -> float:
    """Return the operations of computing the tokens from `start` up to `stop`."""
    linear = 2.0 * active_parameters * (stop - start)
    of_a_pair = 4.0 * shape.heads * shape.head_dim
    pairs = 0
    for layer in shape.layers:
        if layer.kind in _WITHOUT_PAIRS:
            continue
        pairs += _pairs(stop, layer.most_seen_tokens) - _pairs(start, layer.most_seen_tokens)
    return linear + of_a_pair * pairs


def _pairs(n_tokens: int, most_seen: int | None) -> int:
    """Return how many (token, token that it sees) pairs the first `n_tokens` tokens have."""
    if most_seen is None or n_tokens <= most_seen:
        return n_tokens * (n_tokens + 1) // 2
    return most_seen * (most_seen + 1) // 2 + (n_tokens - most_seen) * most_seen
