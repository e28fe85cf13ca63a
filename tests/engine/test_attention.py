"""Attention in pieces is attention: compared with the plain formula over all keys."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor, nn

from prefixcache.engine import attention
from prefixcache.engine.plan import Chunk, plan_step
from prefixcache.errors import EngineError
from prefixcache.kv import KVLayout, KVStore, LayerGroup
from prefixcache.types import BlockId, Span

BLOCK = 4
HEADS, KV_HEADS, DIM = 6, 2, 8
CPU = torch.device("cpu")


class Layer(nn.Module):
    layer_idx = 0


def expected(
    query: Tensor, keys: Tensor, values: Tensor, first: int, window: int | None, lead: int = 0
) -> Tensor:
    """Softmax over every visible key, one head and row at a time. [n, heads, dim]."""
    heads, n, dim = query.shape
    output = torch.empty(n, heads, values.shape[-1])
    for head, row in itertools.product(range(heads), range(n)):
        position = first + row
        oldest = 0 if window is None else max(0, position - window + 1)
        kv_head = head // (heads // keys.shape[0])
        visible = [at for at in range(position + 1) if at >= oldest or at < lead]
        scores = keys[kv_head, visible] @ query[head, row] * dim**-0.5
        output[row, head] = torch.softmax(scores, 0) @ values[kv_head, visible]
    return output


def random_table(n_tokens: int, n_blocks: int, rng: random.Random) -> list[Span]:
    """Cover `n_tokens` positions by runs that lie in no order."""
    needed = -(-n_tokens // BLOCK)
    firsts = rng.sample(range(n_blocks), needed)
    return [Span(BlockId(first), 1) for first in firsts]


@pytest.mark.parametrize("value_dim", [DIM, 5], ids=["flash", "plain"])
@pytest.mark.parametrize(
    ("window", "lead"), [(None, 0), (1, 0), (3, 0), (8, 0), (100, 0), (1, 1), (3, 5), (8, 4)]
)
@pytest.mark.parametrize("cuts", [(0,), (0, 6), (0, 5, 6, 7, 20), (0, 12)])
def test_pieces_equal_the_whole(
    cuts: tuple[int, ...], window: int | None, lead: int, value_dim: int
) -> None:
    """However a sequence is cut and scattered, each row sees exactly its visible keys."""
    n = 23
    rng = random.Random(7)
    torch.manual_seed(3)
    group = LayerGroup((0,), KV_HEADS, DIM, value_dim, window, lead)
    store = KVStore(KVLayout((group,), BLOCK, torch.float32), 16, CPU)
    table = random_table(n, 16, rng)
    query = torch.randn(HEADS, n, DIM)
    keys, values = torch.randn(KV_HEADS, n, DIM), torch.randn(KV_HEADS, n, value_dim)
    for start, stop in zip(cuts, (*cuts[1:], n), strict=True):
        chunk = Chunk(list(range(start, stop)), start, (table,), n_logits=1)
        step = plan_step([chunk], store, CPU)
        rows = slice(start, stop)
        store.write(0, step.groups[0].slots, keys[:, rows], values[:, rows])
        found, _ = attention.paged_attention(
            Layer(),
            query[None, :, rows],
            keys[None, :, rows],
            values[None, :, rows],
            None,
            step=step,
        )
        wanted = expected(query[:, rows], keys, values, start, window, lead)
        torch.testing.assert_close(found[0], wanted, atol=1e-5, rtol=1e-5)


def test_rows_of_a_batch_do_not_see_each_other() -> None:
    """Two sequences packed into one step attend to their own keys alone."""
    torch.manual_seed(3)
    group = LayerGroup((0,), KV_HEADS, DIM, DIM, None)
    store = KVStore(KVLayout((group,), BLOCK, torch.float32), 16, CPU)
    chunks = [
        Chunk(list(range(5)), 0, ([Span(BlockId(4), 2)],), n_logits=1),
        Chunk(list(range(3)), 0, ([Span(BlockId(9), 1)],), n_logits=1),
    ]
    step = plan_step(chunks, store, CPU)
    query, keys = torch.randn(HEADS, 8, DIM), torch.randn(KV_HEADS, 8, DIM)
    store.write(0, step.groups[0].slots, keys, keys)
    found, _ = attention.paged_attention(
        Layer(), query[None], keys[None], keys[None], None, step=step
    )
    for rows in (slice(0, 5), slice(5, 8)):
        wanted = expected(query[:, rows], keys[:, rows], keys[:, rows], 0, None)
        torch.testing.assert_close(found[0, rows], wanted, atol=1e-5, rtol=1e-5)


def test_plan_places_tokens_by_position() -> None:
    """Slots follow the block table, positions the sequence, and logits the last tokens."""
    group = LayerGroup((0,), 1, DIM, DIM, None)
    store = KVStore(KVLayout((group,), BLOCK, torch.float32), 16, CPU)
    table = [Span(BlockId(7), 1), Span(BlockId(2), 2)]
    chunks = [
        Chunk([50, 51, 52], 3, (table,), n_logits=1),
        Chunk([60], 0, ([Span(BlockId(5), 1)],), n_logits=0),
    ]
    step = plan_step(chunks, store, CPU)
    assert step.token_ids.tolist() == [[50, 51, 52, 60]]
    assert step.positions.tolist() == [[3, 4, 5, 0]]
    assert step.groups[0].slots.index.tolist() == [31, 8, 9, 20]
    assert step.logit_rows.tolist() == [2]


def test_unknown_features_are_refused_by_name() -> None:
    """What a model asks of its attention is honoured or refused, never dropped."""
    group = LayerGroup((0,), 1, DIM, DIM, None)
    store = KVStore(KVLayout((group,), BLOCK, torch.float32), 2, CPU)
    chunk = Chunk([1], 0, ([Span(BlockId(0), 1)],), n_logits=1)
    ones = torch.ones(1, 1, 1, DIM)
    with pytest.raises(EngineError, match="position_bias"):
        attention.paged_attention(
            Layer(), ones, ones, ones, None, step=plan_step([chunk], store, CPU), position_bias=30.0
        )
