"""The same model with other weights, loaded beside the one that serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from prefixcache.config import EngineConfig
from prefixcache.engine.adapters import Adapters
from prefixcache.engine.loading import LoadedModel
from prefixcache.engine.model import PagedModel
from prefixcache.engine.selfcheck import N_TOKENS
from prefixcache.errors import ConfigError, ModelError
from prefixcache.kv import KVStore
from prefixcache.types import AdapterInfo

LoadAgain = Callable[[EngineConfig], LoadedModel]

_KEPT = ("vocab_size", "eos_token_ids", "block_size_tokens", "dtype", "weights", "device")


@dataclass(frozen=True, slots=True)
class NextModel:
    """What is to serve next, in the store that is there."""

    loaded: LoadedModel
    adapters: Adapters


def load_next(
    load: LoadAgain, config: EngineConfig, serving: LoadedModel, adapters: Sequence[AdapterInfo]
) -> NextModel:
    """Load the model of `config` again, and its adapters for it; what serves is left alone.

    Args:
        load: as the first time.
        serving: what is served now; its store is what the new weights will fill.
        adapters: what is loaded beside it.

    Raises:
        ModelError: it cannot be loaded or tried, or more than its weights is different.
        AdapterError: an adapter does not go with it.
        ConfigError: a setting does not go with it.

    Cost: memory for the weights a second time.
    """
    small = msgspec.structs.replace(config, kv_memory_bytes=_check_bytes(serving.store))
    try:
        found = load(small)
    except ConfigError as error:
        if error.setting != "kv_memory_bytes":
            raise
        reason = f"memory is short, or the layout of keys and values is another one ({error})"
        raise ModelError(f"the new weights cannot be tried: {reason}") from error
    if different := ", ".join(_differences(serving, found)):
        raise ModelError(f"only weights can be reloaded; different too: {different}. Start anew.")
    beside = Adapters(found.model)
    for adapter in adapters:
        beside.load(adapter.name, adapter.folder)
    info = msgspec.structs.replace(
        serving.info,
        load_id=found.info.load_id,
        folder=found.info.folder,
        adapters=beside.infos,
    )
    return NextModel(replace(serving, model=found.model, info=info, digest=found.digest), beside)


def _check_bytes(store: KVStore) -> int:
    """Return the memory of the least store that a model can be checked in."""
    layout = store.layout
    n_blocks = -(-N_TOKENS // layout.block_size_tokens) + 1
    return n_blocks * layout.block_size_tokens * layout.bytes_per_token


def _differences(serving: LoadedModel, found: LoadedModel) -> Iterator[str]:
    if found.store.layout != serving.store.layout:
        yield "the layout of keys and values"
    before, after = (_longest(each.model) for each in (serving, found))
    if before != after:
        yield f"max_position_embeddings ({after}, was {before})"
    for name in _KEPT:
        before, after = getattr(serving.info, name), getattr(found.info, name)
        if before != after:
            yield f"{name} ({after}, was {before})"


def _longest(model: PagedModel) -> object:
    return getattr(model.model.config.get_text_config(), "max_position_embeddings", None)
