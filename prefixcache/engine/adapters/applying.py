"""Adding adapters to the rows of a forward, by hooks on the modules that they are for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from prefixcache.engine.adapters.patches import LoadedAdapter

AdapterRows = tuple[LoadedAdapter, slice]


class Adapting:
    """Has forwards of a model add adapters to some of their rows.

    Hooks are on modules only from the first forward that needs them to the next one that has no
    adapter, so that a server without adapters, or without requests for them, pays nothing.
    """

    def __init__(self) -> None:
        self._handles: dict[nn.Module, RemovableHandle] = {}
        self._active: Sequence[AdapterRows] = ()
        self._n_rows = 0
        self._called: set[nn.Module] = set()

    @contextmanager
    def applied(self, adapters: Sequence[AdapterRows], n_rows: int) -> Iterator[None]:
        """Add `adapters` in the forwards of the block, each of `n_rows` rows.

        A forward raises RuntimeError where a module that an adapter is for gets other rows.
        """
        if not adapters:
            self.close()
            yield
            return
        self._hook(adapters)
        self._active, self._n_rows = adapters, n_rows
        self._called.clear()
        try:
            yield
        finally:
            self._active = ()

    def close(self) -> None:
        """Take all hooks away; a later forward puts those that it needs on again."""
        while self._handles:
            self._handles.popitem()[1].remove()

    def uncalled(self, adapter: LoadedAdapter) -> list[nn.Module]:
        """Return the modules of `adapter` that the last forward did not call."""
        return [module for module in adapter.patches if module not in self._called]

    def _hook(self, adapters: Sequence[AdapterRows]) -> None:
        for adapter, _ in adapters:
            for module in adapter.patches:
                if module not in self._handles:
                    self._handles[module] = module.register_forward_hook(self._add)

    def _add(self, module: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        if not self._active:
            return
        self._called.add(module)
        inputs: Tensor = arguments[0]
        inputs = inputs.reshape(-1, inputs.shape[-1])
        rows = output.view(-1, output.shape[-1])
        if len(inputs) != self._n_rows:
            raise RuntimeError(f"{len(inputs)} rows came where a step has {self._n_rows}")
        for adapter, taken in self._active:
            patch = adapter.patches.get(module)
            if patch is not None:
                patch.add(inputs[taken], rows[taken])
