"""What the model is given, and what becomes of what it gives."""

from __future__ import annotations

import torch
from torch import Tensor

from prefixcache.engine import attention
from prefixcache.engine.parts import TailPart
from prefixcache.engine.plan import Chunk, Step, plan_step
from prefixcache.kv import KVLayout, KVStore, LayerGroup
from prefixcache.types import (
    BlockId,
    Failed,
    FailureKind,
    Span,
)
from tests.support.models import (
    Bench,
    prompt_ids,
)


def test_scale_of_the_model_is_the_scale_of_the_scores() -> None:
    """Where a model names its scale, attention uses that one."""
    group = LayerGroup((0,), 1, 4, 4, None)
    store = KVStore(KVLayout((group,), 4, torch.float32), 2, torch.device("cpu"))
    chunk = Chunk([1, 2], 0, ([Span(BlockId(0), 1)],), n_logits=1)
    step = plan_step([chunk], store, torch.device("cpu"))
    layer = torch.nn.Module()
    layer.layer_idx = 0  # type: ignore[assignment]
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 1, 1, 2, 4).unbind()
    store.write(0, step.groups[0].slots, key[0], value[0])
    found, _ = attention.paged_attention(layer, query, key, value, None, step=step, scaling=3.0)
    weights = torch.softmax(3.0 * query[0, 0, 1] @ key[0, 0].T, 0)
    torch.testing.assert_close(found[0, 1, 0], weights @ value[0, 0])


def test_each_layer_group_has_its_own_table() -> None:
    """Where the groups' blocks differ, each group's slots come from its own."""
    groups = LayerGroup((0,), 1, 4, 4, None), LayerGroup((1,), 1, 4, 4, 8)
    store = KVStore(KVLayout(groups, 4, torch.float32), 8, torch.device("cpu"))
    tables = ([Span(BlockId(2), 1)], [Span(BlockId(5), 1)])
    step = plan_step([Chunk([1, 2], 1, tables, n_logits=1)], store, torch.device("cpu"))
    assert [group.slots.index.tolist() for group in step.groups] == [[9, 10], [21, 22]]
    read = [
        part.slots for group in step.groups for part in group.parts if isinstance(part, TailPart)
    ]
    assert [slots.index.tolist() for slots in read] == [[8, 9, 10], [20, 21, 22]]


def test_logits_that_are_no_numbers_end_their_request_alone() -> None:
    """A row of NaN fails its own request, and nothing of it stays in the cache."""
    bench = Bench()
    bench.submit("bad", prompt_ids(9), 3)
    bench.submit("good", prompt_ids(9, seed=2), 3)
    forward = bench.model.forward

    def spoiled(step: Step) -> Tensor:
        logits = forward(step).clone()
        logits[0] = torch.nan
        return logits

    bench.model.forward = spoiled  # type: ignore[method-assign]
    bench.step()
    del bench.model.forward
    bench.drain()
    refusal = bench.answers["bad"].ending
    assert isinstance(refusal, Failed)
    assert refusal.kind is FailureKind.INTERNAL
    assert bench.answers["good"].finished.usage.output_tokens == 3
    assert bench.run(prompt_ids(9), 3).cached_tokens == 0
