"""A storm in which adapters are loaded, loaded again and unloaded while their requests run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from prefixcache.types import FailureKind
from tests.support.adapters import merged, write_adapter
from tests.support.storm import Storm

NAMES = ("one", "two")
N_WEIGHTS = 4


class AdapterStorm(Storm):
    """Each request that asks for an adapter is answered by the weights that it began with."""

    def __init__(
        self, folder: Path, seed: int, *, change_rate: float = 0.05, **settings: Any
    ) -> None:
        """Make it, with both adapters loaded.

        Args:
            folder: the weights that adapters may have are written there.
            seed: of all that happens.
            change_rate: how likely an adapter is loaded, or rarely unloaded, before a step.
            settings: those of `Storm`.
        """
        super().__init__(seed, **settings)
        self._change_rate = change_rate
        reference = self.bench.reference
        self._folders = [
            write_adapter(folder / f"{number}", reference, seed=number, r=2 + 2 * number)
            for number in range(N_WEIGHTS)
        ]
        self._models = [merged(reference, each) for each in self._folders]
        self._loaded: dict[str, int] = {}  # which weights each name has
        self._began: dict[str, int | None] = {}  # a request's weights; None: the plain model
        self._refused: set[str] = set()
        self.n_changes = self.n_unloads = 0
        for name in NAMES:
            self._load(name)

    def adapter_of(self, name: str) -> str | None:
        """Choose an adapter, which may be one that is not loaded, or none."""
        adapter = self.rng.choice([None, *NAMES])
        self._began[name] = None if adapter is None else self._loaded.get(adapter)
        if adapter is not None and adapter not in self._loaded:
            self._refused.add(name)
        return adapter

    def reference_of(self, name: str) -> PreTrainedModel:
        """Return the model with the weights that a request began with."""
        weights = self._began[name]
        return self.bench.reference if weights is None else self._models[weights]

    def may_fail(self, name: str) -> set[FailureKind]:
        """Return how a request may fail: one of an adapter that was not there does."""
        return {FailureKind.INVALID} if name in self._refused else super().may_fail(name)

    def step(self) -> None:
        if self.rng.random() < self._change_rate:
            self._change(self.rng.choice(NAMES))
        super().step()

    def _change(self, name: str) -> None:
        self.n_changes += 1
        if name in self._loaded and self.rng.random() < 0.3:
            self.engine.unload_adapter(name)
            del self._loaded[name]
            self.n_unloads += 1
        else:
            self._load(name)

    def _load(self, name: str) -> None:
        self._loaded[name] = self.rng.randrange(N_WEIGHTS)
        self.engine.load_adapter(name, str(self._folders[self._loaded[name]]))
