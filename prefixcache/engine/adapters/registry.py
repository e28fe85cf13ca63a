"""The adapters that are loaded now, by name."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from prefixcache.config import require_adapter_name
from prefixcache.engine.adapters.applying import Adapting
from prefixcache.engine.adapters.patches import Addition, LoadedAdapter, Patch
from prefixcache.engine.adapters.places import Place, find_places
from prefixcache.engine.adapters.reading import LowRank, read_adapter
from prefixcache.engine.fingerprint import tensors_fingerprint
from prefixcache.engine.model import PagedModel
from prefixcache.errors import AdapterError
from prefixcache.types import AdapterInfo

N_TRIED = 8  # tokens of the forward that a new adapter has to pass


class Adapters:
    """Loads adapters for one model; which requests use which is not known here."""

    def __init__(self, model: PagedModel) -> None:
        """Begin with none. `model` has got the modules that it will keep."""
        self._model = model
        self._places = find_places(model.model)
        self._loaded: dict[str, LoadedAdapter] = {}

    @property
    def infos(self) -> tuple[AdapterInfo, ...]:
        """What is loaded now."""
        return tuple(adapter.info for adapter in self._loaded.values())

    def get(self, name: str) -> LoadedAdapter | None:
        """Return the latest load of the adapter that is called `name`."""
        return self._loaded.get(name)

    def load(self, name: str, folder: str) -> LoadedAdapter | None:
        """Read the adapter in `folder` and call it `name`; return what had that name before.

        Raises:
            AdapterError: it cannot be served; whatever had its name still has it.
            ConfigError: the name cannot be one.

        Cost: its files are read, and a few tokens go through the model.
        """
        require_adapter_name(name)
        try:
            layers = read_adapter(Path(folder).expanduser(), self._places)
            digest = tensors_fingerprint(_tensors(layers))
            adapter = LoadedAdapter(_info(name, folder, layers), self._patches(layers), digest)
            self._try_out(adapter)
        except ValueError as error:
            raise AdapterError(name, str(error)) from error
        before = self._loaded.get(name)
        self._loaded[name] = adapter
        return before

    def unload(self, name: str) -> LoadedAdapter:
        """Forget the adapter that is called `name` and return it. Raises AdapterError: none is."""
        adapter = self._loaded.pop(name, None)
        if adapter is None:
            raise AdapterError(name, f"it is not loaded; loaded are: {_listed(self._loaded)}")
        return adapter

    def _patches(self, layers: dict[str, LowRank]) -> dict[nn.Module, Patch]:
        """Return what is to be added where; layers of one module are put together."""
        by_module: dict[nn.Module, list[tuple[Place, LowRank]]] = {}
        for path, low_rank in layers.items():
            place = self._places[path]
            by_module.setdefault(place.module, []).append((place, low_rank))
        return {module: self._patch(parts) for module, parts in by_module.items()}

    def _patch(self, parts: list[tuple[Place, LowRank]]) -> Patch:
        additions, stop = [], 0
        for place, low_rank in parts:
            start, stop = stop, stop + len(low_rank.down)
            up = self._as_model(low_rank.up.T)
            additions.append(Addition(slice(start, stop), slice(place.start, place.stop), up))
        down = torch.cat([low_rank.down for _, low_rank in parts])
        return Patch(self._as_model(down.T), tuple(additions))

    def _as_model(self, matrix: Tensor) -> Tensor:
        return matrix.contiguous().to(self._model.device, self._model.dtype)

    def _try_out(self, adapter: LoadedAdapter) -> None:
        """Feed a few tokens, so that what would fail every request of an adapter fails here.

        Raises:
            ValueError: its layers do not see all rows, or its logits are no numbers.
        """
        adapting = Adapting()
        tokens = [index % self._model.vocab_size for index in range(N_TRIED)]
        try:
            with adapting.applied([(adapter, slice(0, N_TRIED))], N_TRIED):
                logits = self._model.plain_logits(tokens)
        except Exception as error:  # the edge to a model's own code
            raise ValueError(f"the model fails with it: {error}") from error
        finally:
            adapting.close()
        if uncalled := set(adapting.uncalled(adapter)):
            names = [path for path, place in self._places.items() if place.module in uncalled]
            raise ValueError(f"its layer {names[0]} is never called for a text")
        if not bool(logits.isfinite().all()):
            raise ValueError("the model gives no finite logits with it")


def _tensors(layers: dict[str, LowRank]) -> Iterator[tuple[str, Tensor]]:
    for path, low_rank in sorted(layers.items()):
        yield f"{path} down", low_rank.down
        yield f"{path} up", low_rank.up


def _info(name: str, folder: str, layers: dict[str, LowRank]) -> AdapterInfo:
    return AdapterInfo(
        name=name,
        folder=folder,
        rank=max(len(low_rank.down) for low_rank in layers.values()),
        n_layers=len(layers),
        load_id=secrets.token_hex(8),
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
