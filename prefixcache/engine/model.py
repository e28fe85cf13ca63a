"""A transformers model made to read and write the paged store."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from prefixcache.config import Pruning
from prefixcache.engine.attention import NAME, paged_attention
from prefixcache.engine.families import unsupported
from prefixcache.engine.paged_cache import PagedCache
from prefixcache.engine.plan import Step
from prefixcache.errors import EngineError
from prefixcache.kv import KVLayout, LayerGroup

PROBE = "prefixcache_probe"
MASKED_KINDS = frozenset({"sliding_attention", "chunked_attention"})


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer was seen to store and to look at."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None


class PagedModel:
    """Runs a causal language model of transformers, unmodified, on packed rows."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Take over `model`: it is switched to evaluation mode and to paged attention.

        Raises:
            UnsupportedModelError: its positions or its attention cannot be cached.
        """
        if model.config.is_encoder_decoder:
            reason = "it is an encoder-decoder, whose answers attend to an encoder's text"
            raise unsupported(type(model).__name__, reason)
        AttentionInterface.register(NAME, paged_attention)
        AttentionInterface.register(PROBE, _probe_attention)
        self.model = model.eval()
        self.architecture = type(model).__name__
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.is_invariant = False  # set once its weights are packed for that
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self._cache_name = _cache_argument(model)

    def use_attention(self, name: str) -> None:
        """Switch every layer to the attention function that transformers knows as `name`."""
        self.model.set_attn_implementation(name)

    @torch.inference_mode()
    def forward(self, step: Step) -> Tensor:
        """Feed a step; its KV is written to the store.

        Returns:
            float32 [rows that want logits, vocab_size]. The caller owns it.
        """
        output = self.model(
            input_ids=step.token_ids,
            position_ids=step.positions,
            use_cache=True,
            logits_to_keep=step.logit_rows,
            step=step,
            **{self._cache_name: PagedCache(step)},
        )
        logits: Tensor = output.logits[0].float()
        return logits

    @torch.inference_mode()
    def plain_logits(self, token_ids: list[int]) -> Tensor:
        """Return float32 [len(token_ids), vocab_size] by the model's own eager attention."""
        self.use_attention("eager")
        try:
            ids = torch.tensor([token_ids], device=self.device)
            logits: Tensor = self.model(input_ids=ids, use_cache=False).logits[0].float()
        finally:
            self.use_attention(NAME)
        return logits

    def layout(
        self, block_size_tokens: int, kv_format: str = "auto", pruning: Pruning | None = None
    ) -> KVLayout:
        """Find out what each layer stores, by feeding one token and looking.

        Args:
            block_size_tokens: of the store.
            kv_format: how it is to be kept.
            pruning: what layers without a window see and keep; None: everything.

        Raises:
            UnsupportedModelError: some layer keeps no keys and values, or a state instead.
        """
        shapes = self.layer_shapes()
        self._refuse_unseen_windows(shapes)
        n_layers = int(self.model.config.get_text_config().num_hidden_layers)
        if sorted(shapes) != list(range(n_layers)):
            reason = (
                f"{len(shapes)} of its {n_layers} layers keep keys and values per position;"
                " recurrent and cross-attention layers are not supported"
            )
            raise unsupported(self.architecture, reason)
        groups = tuple(group.pruned(pruning) for group in _groups(shapes))
        return KVLayout(groups, block_size_tokens, self.dtype, kv_format)

    @torch.inference_mode()
    def layer_shapes(self) -> dict[int, LayerShape]:
        """Return what each layer stores and looks at, by index, where it goes through a cache.

        Raises:
            UnsupportedModelError: it fails with a cache that it is given.
        """
        probe = _ProbeCache()
        self.use_attention(PROBE)
        try:
            self.model(
                input_ids=torch.zeros(1, 1, dtype=torch.int64, device=self.device),
                position_ids=torch.zeros(1, 1, dtype=torch.int64, device=self.device),
                use_cache=True,
                probe=probe,
                **{self._cache_name: probe},
            )
        except Exception as error:  # the edge to a model's own code
            raise unsupported(self.architecture, _why(self.model, error)) from error
        finally:
            self.use_attention(NAME)
        return probe.shapes

    def _refuse_unseen_windows(self, shapes: dict[int, LayerShape]) -> None:
        """Refuse a model whose window stands in its masks alone: paged attention has none."""
        config = self.model.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or []
        for layer, shape in shapes.items():
            if layer < len(kinds) and kinds[layer] in MASKED_KINDS and shape.window is None:
                reason = f"the sliding window of layer {layer} does not reach its attention call"
                raise unsupported(self.architecture, reason)
        window = getattr(config, "sliding_window", None)
        is_wide = window is None or window >= getattr(config, "max_position_embeddings", window)
        is_off = is_wide or getattr(config, "use_sliding_window", None) is False
        if not (kinds or is_off or any(shape.window for shape in shapes.values())):
            reason = f"its sliding window of {window} does not reach its attention calls"
            raise unsupported(self.architecture, reason)


class _ProbeCache:
    """Takes note of the shapes that each layer writes and of its window."""

    def __init__(self) -> None:
        self.kv: dict[int, tuple[int, int, int]] = {}
        self.shapes: dict[int, LayerShape] = {}

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        self.kv[layer_idx] = (key.shape[1], key.shape[3], value.shape[3])
        return key, value

    def get_seq_length(self, *_: object) -> int:
        """Return 0; see `PagedCache`."""
        return 0


def _probe_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    probe: _ProbeCache | None = None,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention of a single first token: it sees its own value alone."""
    if probe is None:
        raise EngineError("keyword arguments do not reach its attention calls")
    layer = module.layer_idx
    assert isinstance(layer, int)
    if probe.kv.get(layer) != (key.shape[1], key.shape[3], value.shape[3]):
        raise EngineError(f"layer {layer} attends to other keys and values than its cache keeps")
    probe.shapes[layer] = LayerShape(*probe.kv[layer], window=sliding_window)
    wide = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    return wide.transpose(1, 2), None


def _why(model: PreTrainedModel, error: Exception) -> str:
    """Return why a model failed with a cache that knows keys and values alone."""
    if isinstance(error, AttributeError) and "_state" in str(error):
        return "its layers keep a recurrent state, of which requests cannot share a part"
    if not model._can_set_attn_implementation():
        return "its attention is code of its own, not called through transformers' interface"
    return f"it cannot run with a paged key/value cache: {error}"


def _groups(shapes: dict[int, LayerShape]) -> tuple[LayerGroup, ...]:
    layers: dict[LayerShape, list[int]] = {}
    for layer in sorted(shapes):
        layers.setdefault(shapes[layer], []).append(layer)
    return tuple(
        LayerGroup(tuple(members), shape.kv_heads, shape.key_dim, shape.value_dim, shape.window)
        for shape, members in layers.items()
    )


def _cache_argument(model: PreTrainedModel) -> str:
    """Return the name of forward's cache argument: it changed in transformers 5.2x."""
    names = inspect.signature(model.forward).parameters
    for name in ("cache", "past_key_values"):
        if name in names:
            return name
    raise unsupported(type(model).__name__, "its forward takes no key/value cache")
