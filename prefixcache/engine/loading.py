"""From a model's name to a checked, paged model with its store and tokenizer."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from prefixcache.config import EngineConfig
from prefixcache.engine.default_model import DEFAULT_MODEL
from prefixcache.engine.fingerprint import model_fingerprint
from prefixcache.engine.invariance import check_invariance
from prefixcache.engine.model import PagedModel
from prefixcache.engine.owning import own_weights
from prefixcache.engine.resolve import HubModel, hub_name, resolve_model, serving_folder
from prefixcache.engine.resources import kv_memory_bytes, usable_device, use_threads
from prefixcache.engine.rotary import longest_steady_tokens
from prefixcache.engine.selfcheck import N_TOKENS, check_model
from prefixcache.engine.weights import WeightKind, choose_kind, load_dtype, pack_model
from prefixcache.engine.window_room import CHUNK_TOKENS
from prefixcache.errors import ConfigError, ModelError
from prefixcache.kv import KVLayout, KVPools, KVStore, require_format
from prefixcache.text import Tokenizer
from prefixcache.types import ModelInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that passed its check, and all that it needs to serve."""

    model: PagedModel
    store: KVStore
    tokenizer: Tokenizer | None
    info: ModelInfo
    digest: bytes | None = None  # of what makes its KV; None: nobody needs it


def load_model(
    config: EngineConfig, *, env: Mapping[str, str], report: Callable[[str], None]
) -> LoadedModel:
    """Load what `config.model` names; see `Engine.load` for arguments and errors."""
    if config.threads is not None:
        use_threads(config.threads)
    device = usable_device(config.device)
    dtype = load_dtype(config, device)
    source = resolve_model(config.model, env=env, report=report)
    folder = serving_folder(source, env=env, report=report)
    report(f"loading {source} on {device}")
    on_hub = source if isinstance(source, HubModel) else None
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            source if on_hub is None else on_hub.name,
            revision="main" if on_hub is None else on_hub.commit,
            dtype=dtype,
            attn_implementation="eager",
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # the edge to a model's own files and code
        raise ModelError(f"{source} cannot be loaded: {error}") from error
    if lacking := sorted(map(str, [*found["missing_keys"], *found["mismatched_keys"]])):
        raise ModelError(
            f"{source} lacks {len(lacking)} of its weights, or has them in another shape:"
            f" {', '.join(lacking[:3])}. Fetch or convert it again."
        )
    own_weights(model)
    return prepare_model(
        model.to(device),
        config,
        name=DEFAULT_MODEL if config.model is None else _short_name(config.model),
        tokenizer=Tokenizer.load(folder),
        folder=folder,
        report=report,
    )


def prepare_model(
    model: PreTrainedModel,
    config: EngineConfig,
    *,
    name: str,
    tokenizer: Tokenizer | None = None,
    folder: Path | None = None,
    keeps_modules: bool = False,
    report: Callable[[str], None] = logger.info,
) -> LoadedModel:
    """Switch a loaded model to paged attention, give it a store, pack its weights and check it.

    With `keeps_modules` nothing is packed and `config.weights` is not looked at.

    Raises:
        UnsupportedModelError: it cannot be served; the message says why.
        ConfigError: the KV memory cannot be had or holds no useful number of blocks, or the
            weights cannot be had in the form that is wanted.
    """
    paged = PagedModel(model)
    _refuse_variance(paged, config, keeps_modules=keeps_modules)
    require_format(config.kv_format, paged.device)
    layout = paged.layout(config.block_size_tokens, config.kv_format, config.pruning)
    _refuse_pruning_of_nothing(layout, config)
    pools = _pools(model, layout, config, paged.device)
    store = KVStore(layout, pools, paged.device)
    digest = _digest(model, layout, config, keeps_modules=keeps_modules)
    trial = _trial_store(store)
    kind = None if keeps_modules else _pack(paged, trial, config, report)
    check_model(paged, trial, weights=kind)
    if paged.is_invariant:
        check_invariance(paged, store)
    info = ModelInfo(
        name=name,
        folder=str(folder or ""),
        vocab_size=paged.vocab_size,
        max_model_tokens=longest_sequence_tokens(model, config, pools.n_blocks),
        eos_token_ids=_eos_token_ids(model),
        kv_bytes_per_token=layout.bytes_per_token,
        pool_blocks=pools.n_blocks,
        block_size_tokens=config.block_size_tokens,
        dtype=str(paged.dtype).removeprefix("torch."),
        weights=kind or str(paged.dtype).removeprefix("torch."),
        device=str(paged.device),
        load_id=secrets.token_hex(8),
        kept_as=layout.format.name,
        kv_prune=config.kv_prune,
        max_grammar_bytes=config.max_grammar_bytes,
    )
    return LoadedModel(paged, store, tokenizer, info, digest)


def _digest(
    model: PreTrainedModel, layout: KVLayout, config: EngineConfig, *, keeps_modules: bool
) -> bytes | None:
    """Return the digest of what makes the model's KV, where some of that is to be kept by it."""
    if not config.has_lasting_tiers:
        return None
    dtype, device = layout.dtype, model.device
    kind = None if keeps_modules else choose_kind(config.weights, dtype, device)
    kv_format = f"{device.type}, weights {kind}, invariant {config.invariant}"
    return model_fingerprint(model, layout, kv_format)


def _refuse_pruning_of_nothing(layout: KVLayout, config: EngineConfig) -> None:
    if config.kv_prune is not None and not any(group.lead for group in layout.groups):
        reason = "every layer of the model has a window of its own, and drops what it has passed"
        raise ConfigError("kv_prune", config.kv_prune, reason)


def _trial_store(store: KVStore) -> KVStore:
    """Return a store to check a model in: one that loses nothing, so that its faults show."""
    groups = tuple(replace(g, window=None, lead=0) if g.lead else g for g in store.layout.groups)
    if store.is_plain and groups == store.layout.groups:
        return store
    layout = replace(store.layout, groups=groups, kept_as="auto")
    return KVStore(layout, _least_blocks(layout.block_size_tokens), store.device)


def _least_blocks(block_size_tokens: int) -> int:
    return -(-N_TOKENS // block_size_tokens) + 1


def _pack(
    paged: PagedModel, store: KVStore, config: EngineConfig, report: Callable[[str], None]
) -> WeightKind | None:
    kind = choose_kind(config.weights, paged.dtype, paged.device)
    if kind is not None:
        packed = pack_model(paged, store, kind, config.weights, invariant=config.invariant)
        paged.is_invariant = config.invariant
        report(str(packed))
    return kind


def _refuse_variance(paged: PagedModel, config: EngineConfig, *, keeps_modules: bool) -> None:
    """Refuse invariant mode where products would be torch's own."""
    if not config.invariant:
        return
    if keeps_modules:
        reason = "packs weights; say which with weights: float32, 16bit or int8"
        raise ConfigError("invariant", True, reason)
    if paged.device.type != "cpu" or paged.dtype != torch.float32:
        found = f"{paged.dtype}".removeprefix("torch.")
        reason = (
            f"needs float32 on a CPU, not {found} on {paged.device}: elsewhere the kernels'"
            " results depend on the size of the batch"
        )
        raise ConfigError("invariant", True, reason)


def _short_name(model: str) -> str:
    """Return what clients call the model: a hub name without revision, a path by its last part."""
    path = Path(model).expanduser()
    if not path.exists():
        return hub_name(model)
    return path.resolve().stem if path.is_file() else path.resolve().name


def _pools(
    model: PreTrainedModel, layout: KVLayout, config: EngineConfig, device: torch.device
) -> KVPools:
    memory_bytes = kv_memory_bytes(config.kv_memory_bytes, device)
    if config.invariant:  # it reads segments whole, so local layers keep what windows have passed
        layout = replace(layout, groups=tuple(replace(each, window=None) for each in layout.groups))
    least = _least_blocks(config.block_size_tokens)
    pools = layout.pools_within(
        memory_bytes,
        longest_tokens=min(_length_limits(model, config), default=None),
        chunk_tokens=min(CHUNK_TOKENS, config.max_step_tokens),
        least_blocks=least,
    )
    if pools.n_blocks < least:
        block_bytes = layout.bytes_per_token * config.block_size_tokens
        reason = (
            f"holds {pools.n_blocks} blocks of {block_bytes} bytes; at least {least} are needed"
        )
        raise ConfigError("kv_memory_bytes", memory_bytes, reason)
    return pools


def _length_limits(model: PreTrainedModel, config: EngineConfig) -> list[int]:
    """Return how long a sequence may be by the model's word and by the setting."""
    text = model.config.get_text_config()
    own = getattr(text, "max_position_embeddings", None)
    limits = (own, longest_steady_tokens(text), config.max_model_tokens)
    return [int(limit) for limit in limits if limit is not None]


def longest_sequence_tokens(model: PreTrainedModel, config: EngineConfig, n_blocks: int) -> int:
    """Return the longest sequence: the model's, the setting's and the pool's limit."""
    return min(n_blocks * config.block_size_tokens, *_length_limits(model, config))


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    generation = getattr(model, "generation_config", None)
    found = getattr(generation, "eos_token_id", None)
    if found is None:
        found = getattr(model.config.get_text_config(), "eos_token_id", None)
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list | tuple) else (int(found),)
