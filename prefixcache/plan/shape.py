"""What a model keeps of every token that it has read, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_BLOCK_TOKENS = 16


class LayerKind(StrEnum):
    """How the KV of a layer grows with a request."""

    FULL = "full attention"  # with every token
    WINDOW = "sliding window"  # until the window is full
    LATENT = "latent attention"  # one compressed vector a token, for all heads
    STATE = "recurrent state"  # not at all: a request has one state
    NONE = "keeps nothing"  # no attention, or it reads another layer's KV


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What one layer keeps of a request."""

    kind: LayerKind
    kv_heads: int = 0  # 1 for latent attention
    numbers_per_token: int = 0  # of keys and values together, all heads
    unshared_numbers_per_token: int = 0  # were keys and values kept for every query head
    window_tokens: int | None = None
    state_numbers: int = 0  # of a request, whatever its length

    def kept_tokens(self, n_tokens: int, block_tokens: int) -> int:
        """Return the tokens that there is room for when a request has `n_tokens` tokens.

        Whole blocks; a window that has moved on lies across one more.
        """
        if self.window_tokens is None or n_tokens <= self.window_tokens:
            return _whole(n_tokens, block_tokens)
        return _whole(self.window_tokens, block_tokens) + block_tokens

    def shareable_tokens(self, n_tokens: int, n_shared: int) -> int:
        """Return how many of the shared first tokens a request of `n_tokens` still sees."""
        if self.window_tokens is None:
            return n_shared
        return max(n_shared - max(n_tokens - self.window_tokens, 0), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The figures of a model that decide what its KV and its work cost."""

    name: str
    family: str  # transformers' `model_type`
    layers: tuple[Layer, ...]
    heads: int
    head_dim: int  # of latent attention the mean of what scores and what values have
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_tokens: int | None  # that it was made for; None: it does not say
    number_bytes: int  # of the checkpoint's own dtype
    unknown: tuple[str, ...] = ()  # what could not be told from the configuration, for people

    @property
    def kv_heads(self) -> int:
        """Key/value heads of the layer that has most."""
        return max((layer.kv_heads for layer in self.layers), default=0)

    def counts(self) -> dict[LayerKind, int]:
        """Return how many layers there are of each kind."""
        kinds = [layer.kind for layer in self.layers]
        return {kind: kinds.count(kind) for kind in LayerKind if kind in kinds}


def _whole(n_tokens: int, block_tokens: int) -> int:
    return -(-n_tokens // block_tokens) * block_tokens
