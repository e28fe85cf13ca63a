"""Random steps for attention, and the plain formula over all keys that they are compared with."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from prefixcache.engine import attention
from prefixcache.engine.plan import Chunk, Step, plan_step
from prefixcache.kv import KVLayout, KVStore, LayerGroup
from prefixcache.types import BlockId, Span
from tests.support.kv import KV_FORMATS, spoil

CPU = torch.device("cpu")
KEY_DIM = 8


@dataclass(frozen=True)
class Sequence:
    """One sequence of a step: what it shares, how long it is, and what of it is new."""

    parent: int | None  # an earlier sequence, whose first `shared_blocks` blocks it goes on from
    shared_blocks: int
    own_tokens: int
    n_new: int


@dataclass(frozen=True)
class World:
    """Everything that decides a step."""

    sequences: tuple[Sequence, ...]
    windows: tuple[int | None, ...]  # of the layer groups
    kv_heads: int
    heads_per_kv_head: int
    value_dim: int
    block_size: int
    seed: int
    softcap: float | None = None
    has_sinks: bool = False
    kv_format: str = "auto"
    lead: int = 0  # of the groups with a window


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Trees of sequences with short and long runs, decodes and prefills of every size."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    sequences: list[Sequence] = []
    for index in range(draw(st.integers(1, 6))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        shared = draw(st.integers(0, 320 // block_size)) if parent is not None else 0
        n_new = draw(st.sampled_from([1, 1, 2, 5, 16, 17, 40, 128, 129, 200]))
        own = draw(st.integers(0, 30) | st.integers(0, 400))
        sequences.append(Sequence(parent, shared, own, n_new))
    return World(
        tuple(sequences),
        draw(st.sampled_from([(None,), (7,), (300,), (None, 20), (100, None)])),
        draw(st.sampled_from([1, 2, 3])),
        draw(st.sampled_from([1, 3, 4])),
        draw(st.sampled_from([KEY_DIM, 5])),
        block_size,
        draw(st.integers(0, 2**16)),
        draw(st.sampled_from([None, None, 0.7])),
        draw(st.booleans()),
        draw(st.sampled_from(["auto", "auto", *KV_FORMATS])),
        draw(st.sampled_from([0, 0, 1, 4, 21, 130])),
    )


class Layer(nn.Module):
    """Stands for a model's attention layer."""

    def __init__(self, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx


class Scene:
    """A world's store, filled with random KV, and the chunks and queries of one step.

    Blocks are dealt out in runs of random length and order, for each group by itself. What no
    sequence has written is NaN, so that whoever reads it shows.
    """

    def __init__(self, world: World) -> None:
        self.rng = random.Random(world.seed)
        torch.manual_seed(world.seed)
        self.world = world
        self.groups = tuple(
            LayerGroup(
                (index,),
                world.kv_heads,
                KEY_DIM,
                world.value_dim,
                window,
                0 if window is None else world.lead,
            )
            for index, window in enumerate(world.windows)
        )
        size = world.block_size
        n_blocks = sum(-(-(each.own_tokens + each.n_new) // size) for each in world.sequences) * 2
        self.store = KVStore(
            KVLayout(self.groups, size, torch.float32, world.kv_format), n_blocks, CPU
        )
        self.lengths: list[int] = []
        tables = [self._tables(n_blocks) for _ in self.groups]
        for group in range(len(self.groups)):
            spoil(self.store.layer(group))
            for length, table in zip(self.lengths, tables[group], strict=True):
                keys, values = (
                    torch.randn(world.kv_heads, length, dim) for dim in (KEY_DIM, world.value_dim)
                )
                slots = self.store.slots(self.slots(table)[:length])
                self.store.write(group, slots, keys, values)
        self.chunks = [self._chunk(index, tables) for index in range(len(world.sequences))]
        self.tables = tables
        heads = world.kv_heads * world.heads_per_kv_head
        self.queries = [torch.randn(heads, each.n_new, KEY_DIM) for each in world.sequences]
        self.sinks = torch.randn(heads) if world.has_sinks else None

    def _chunk(self, index: int, tables: list[list[list[int]]]) -> Chunk:
        """Return a sequence's new tokens; where there is a lead, without the blocks after it."""
        n_new = self.world.sequences[index].n_new
        first = self.lengths[index] - n_new
        held = []
        for group, table in zip(self.groups, tables, strict=True):
            n_lead = -(-group.lead // self.world.block_size)
            begin = 0
            if group.window is not None and group.lead:
                begin = max(first - group.window + 1, 0) // self.world.block_size
                begin = max(begin, min(n_lead, len(table[index])))
            lead = table[index][: min(n_lead, begin)]
            held.append((self._as_spans(lead), begin, self._as_spans(table[index][begin:])))
        return Chunk(
            list(range(n_new)),
            first,
            tuple(rest for _, _, rest in held),
            n_logits=index % 3 % (n_new + 1),
            first_blocks=tuple(begin for _, begin, _ in held),
            leads=tuple(lead for lead, _, _ in held),
        )

    def slots(self, table: list[int]) -> Tensor:
        size = self.world.block_size
        return torch.tensor([block * size + offset for block in table for offset in range(size)])

    def _tables(self, n_blocks: int) -> list[list[int]]:
        """Return each sequence's blocks, one id after another."""
        free = list(range(n_blocks))
        start = self.rng.randrange(n_blocks)
        free = free[start:] + free[:start]
        tables: list[list[int]] = []
        self.lengths = []
        for each in self.world.sequences:
            above = tables[each.parent] if each.parent is not None else []
            # a last block that is not full, or is new, is nobody else's
            full = 0
            if each.parent is not None:
                parent_cached = self.lengths[each.parent] - self.world.sequences[each.parent].n_new
                full = parent_cached // self.world.block_size
            table = above[: min(each.shared_blocks, full)]
            length = len(table) * self.world.block_size + each.own_tokens + each.n_new
            for _ in range(-(-length // self.world.block_size) - len(table)):
                if self.rng.random() < 0.05:
                    cut = self.rng.randrange(len(free))
                    free = free[cut:] + free[:cut]
                table = [*table, free.pop(0)]
            tables.append(table)
            self.lengths.append(length)
        return tables

    def _as_spans(self, table: list[int]) -> list[Span]:
        """Join neighbours into runs, but not always."""
        spans: list[Span] = []
        for block in table:
            last = spans[-1] if spans else None
            if last and last.first + last.n_blocks == block and self.rng.random() < 0.9:
                spans[-1] = Span(last.first, last.n_blocks + 1)
            else:
                spans.append(Span(BlockId(block), 1))
        return spans

    def found(self, chosen: list[int]) -> list[list[Tensor]]:
        """Return, for each group, the output [n, heads, value_dim] of each chosen sequence."""
        step = plan_step([self.chunks[index] for index in chosen], self.store, CPU)
        return [self._found(step, group, chosen) for group in range(len(self.groups))]

    def _found(self, step: Step, group: int, chosen: list[int]) -> list[Tensor]:
        keys, values = self.store.kept(group)
        slots = step.groups[group].slots
        rows = self.rows(step, group, chosen)
        query = torch.empty(self.queries[0].shape[0], len(slots), KEY_DIM)
        for index, mine in zip(chosen, rows, strict=True):
            query[:, mine] = self.queries[index]
        output, _ = attention.paged_attention(
            Layer(group),
            query.transpose(0, 1).contiguous().transpose(0, 1)[None],  # as models lay it out
            keys.at(slots)[None],
            values.at(slots)[None],
            None,
            step=step,
            softcap=self.world.softcap,
            s_aux=self.sinks,
        )
        return [output[0, mine] for mine in rows]

    def rows(self, step: Step, group: int, chosen: list[int]) -> list[Tensor]:
        """Return the packed rows of each chosen sequence, found by where their KV goes."""
        place = {int(slot): row for row, slot in enumerate(step.groups[group].slots.index)}
        return [
            torch.tensor([place[int(slot)] for slot in self._new_slots(group, index)])
            for index in chosen
        ]

    def _new_slots(self, group: int, index: int) -> Tensor:
        length = self.lengths[index]
        return self.slots(self.tables[group][index])[length - self.queries[index].shape[1] : length]

    def wanted(self, group: int, index: int) -> Tensor:
        """Return softmax over every visible key, by the plain formula, in float64."""
        keys, values = self.store.kept(group)
        slots = self.store.slots(self.slots(self.tables[group][index])[: self.lengths[index]])
        wide = self.world.heads_per_kv_head
        key = keys.at(slots).double().repeat_interleave(wide, dim=0)
        value = values.at(slots).double().repeat_interleave(wide, dim=0)
        query = keys.turned(self.queries[index]).double()
        row = torch.arange(len(slots) - query.shape[1], len(slots))[:, None]
        distance = row - torch.arange(len(slots))[None]
        window = self.groups[group].window
        is_far = distance >= (window if window is not None else len(slots))
        is_later = torch.arange(len(slots))[None] >= self.groups[group].lead
        hidden = (distance < 0) | (is_far & is_later)
        scores = query @ key.transpose(1, 2) * KEY_DIM**-0.5
        if self.world.softcap is not None:
            scores = torch.tanh(scores / self.world.softcap) * self.world.softcap
        scores = scores.masked_fill(hidden, -torch.inf)
        if self.sinks is not None:
            sinks = self.sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat([scores, sinks], -1)
        weights = torch.softmax(scores, -1)[..., : len(slots)]
        return (weights @ value).transpose(0, 1).float()
