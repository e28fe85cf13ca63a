"""What each decoder layer of a model does to real rows, to compare its replacement with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from prefixcache.engine.model import PagedModel
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.errors import UnsupportedModelError
from prefixcache.kv import KVStore
from prefixcache.types import BlockId, Span

_LONG, _SHORT = (3, 5), (2, 1)  # first position and tokens of two chunks
_DROWNED = 1e-2


@dataclass(frozen=True, slots=True)
class Seen:
    """One call of a layer: what it was given and what it gave."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Tensor

    @property
    def before(self) -> Tensor:
        """The rows that the layer was given, [1, t, width]."""
        rows = self.arguments[0] if self.arguments else self.keywords["hidden_states"]
        assert isinstance(rows, Tensor)
        return rows

    @torch.inference_mode()
    def again(self, layer: nn.Module) -> Tensor:
        """Return what `layer` gives for the same call."""
        output = layer(*self.arguments, **self.keywords)
        assert isinstance(output, Tensor)
        return output

    def difference(self, found: Tensor, expected: Tensor) -> float:
        """Return how far two outputs are apart, as a share of what the layer changed.

        A small share of the output's own length counts as changed too: where it is thousands
        of times longer than the change, as for a model's first token, its last bits drown that.
        """
        changed = (expected - self.before).norm() + _DROWNED * expected.norm()
        return float((found - expected).norm() / changed.clamp_min(1e-30))


@torch.inference_mode()
def watch_layers(model: PagedModel, store: KVStore, layers: nn.ModuleList) -> list[Seen]:
    """Run a small step through `model` and return each layer's call.

    Overwrites the first blocks of the store, which must be unused.

    Raises:
        UnsupportedModelError: the model fails on it, or a layer gives no single tensor.
    """
    seen: list[Seen] = []

    def note(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if isinstance(output, Tensor):
            seen.append(Seen(given, named, output))

    hooks = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    try:
        model.forward(plan_step(_chunks(model, store), store, model.device))
    except Exception as error:  # the edge to a model's own code: whatever it raises, it is refused
        raise UnsupportedModelError(model.architecture, f"it failed its check: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()
    if len(seen) != len(layers):
        reason = f"{len(layers) - len(seen)} of its layers give more than their rows"
        raise UnsupportedModelError(model.architecture, reason)
    return seen


def _chunks(model: PagedModel, store: KVStore) -> list[Chunk]:
    generator = torch.Generator().manual_seed(0)
    chunks, first_block = [], 0
    for first, n in (_LONG, _SHORT):
        n_blocks = -(-(first + n) // store.layout.block_size_tokens)
        tables = tuple([Span(BlockId(first_block), n_blocks)] for _ in store.layout.groups)
        token_ids = torch.randint(model.vocab_size, (n,), generator=generator).tolist()
        chunks.append(Chunk(token_ids, first, tables, n_logits=1))
        first_block += n_blocks
    return chunks
