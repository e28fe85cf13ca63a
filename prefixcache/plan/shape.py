"""What a model keeps of every token that it has read, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from prefixcache.config import Pruning
from prefixcache.errors import ConfigError

DEFAULT_BLOCK_TOKENS = 16


class LayerKind(StrEnum):
    """How the KV of a layer grows with a request."""

    FULL = "full attention"  # with every token
    WINDOW = "sliding window"  # until the window is full
    PRUNED = "pruned attention"  # until its first and recent tokens are there
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
    lead_tokens: int = 0  # with a window: first tokens that are seen as well
    state_numbers: int = 0  # of a request, whatever its length

    @property
    def most_seen_tokens(self) -> int | None:
        """The most tokens that one token sees; None: all before it."""
        return None if self.window_tokens is None else self.lead_tokens + self.window_tokens

    def pruned(self, pruning: Pruning) -> Layer:
        """Return it as `pruning` leaves it; a window of its own stays."""
        if self.window_tokens is not None or not self.numbers_per_token:
            return self
        kind = LayerKind.PRUNED if self.kind is LayerKind.FULL else self.kind
        lead, window = pruning
        return replace(self, kind=kind, window_tokens=window, lead_tokens=lead)

    def kept_tokens(self, n_tokens: int, block_tokens: int) -> int:
        """Return the tokens that there is room for when a request has `n_tokens` tokens.

        Whole blocks; a window that has moved on lies across one more.
        """
        most_seen, all_of_it = self.most_seen_tokens, _whole(n_tokens, block_tokens)
        if self.window_tokens is None or most_seen is None or n_tokens <= most_seen:
            return all_of_it
        window = _whole(self.window_tokens, block_tokens) + block_tokens
        return min(_whole(self.lead_tokens, block_tokens) + window, all_of_it)

    def shareable_tokens(self, n_tokens: int, n_shared: int) -> int:
        """Return how many of the shared first tokens a request of `n_tokens` still sees."""
        if self.window_tokens is None:
            return n_shared
        window_start = max(n_tokens - self.window_tokens, self.lead_tokens)
        return min(n_shared, self.lead_tokens) + max(n_shared - window_start, 0)


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
    kv_prune: str | None = None  # what its layers were pruned to; None: they are not

    @property
    def kv_heads(self) -> int:
        """Key/value heads of the layer that has most."""
        return max((layer.kv_heads for layer in self.layers), default=0)

    def pruned(self, setting: str) -> ModelShape:
        """Return it as `prefixcache serve --kv-prune` leaves it.

        Raises:
            ConfigError: `setting` cannot be read, or there is no layer to prune.
        """
        pruning = Pruning.read(setting)
        layers = tuple(layer.pruned(pruning) for layer in self.layers)
        if layers == self.layers:
            raise ConfigError("kv_prune", setting, "no layer of the model keeps every token")
        return replace(self, layers=layers, kv_prune=setting)

    def counts(self) -> dict[LayerKind, int]:
        """Return how many layers there are of each kind."""
        kinds = [layer.kind for layer in self.layers]
        return {kind: kinds.count(kind) for kind in LayerKind if kind in kinds}


def _whole(n_tokens: int, block_tokens: int) -> int:
    return -(-n_tokens // block_tokens) * block_tokens
