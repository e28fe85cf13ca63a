"""The cache object that a transformers model writes its new keys and values to."""

from __future__ import annotations

from torch import Tensor

from prefixcache.engine.plan import Step


class PagedCache:
    """Writes each layer's new KV to the slots of a step, and hands it back as it is kept.

    It takes the place of transformers' Cache for one forward. What came before is not
    returned: the attention function reads it from the store.
    """

    def __init__(self, step: Step) -> None:
        self._step = step

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Store keys and values, each [1, kv_heads, t, dim], of the step's t rows."""
        store = self._step.store
        slots = self._step.groups[store.group_of(layer_idx)].slots
        kept_key, kept_value = store.write(layer_idx, slots, key[0], value[0])
        return kept_key.unsqueeze(0), kept_value.unsqueeze(0)

    def get_seq_length(self, *_: object) -> int:
        """Return 0: positions are given, so nothing is to be counted from what came before."""
        return 0
