"""Keys as differences from those before them: near what was written, and the same bits always."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from prefixcache.kv import Kept, KVLayout, KVStore, LayerGroup
from prefixcache.kv.int4 import Int4
from prefixcache.types import BlockId
from tests.support.kv import spoil

CPU = torch.device("cpu")
KV_HEADS, DIM = 2, 8
N_BLOCKS = 50


def new_store(
    block_size: int, dtype: torch.dtype = torch.float32, value_dim: int = DIM, dim: int = DIM
) -> KVStore:
    """Return a store in int4 whose every number is NaN."""
    group = LayerGroup((0,), KV_HEADS, dim, value_dim, None)
    store = KVStore(KVLayout((group,), block_size, dtype, "int4"), N_BLOCKS, CPU)
    spoil(store.layer(0))
    return store


def keys_of(store: KVStore) -> Kept:
    return store.kept(0)[0]


def write(store: KVStore, slots: list[int], rows: Tensor) -> Tensor:
    """Write keys, and values that are like them, and return the keys as they are read."""
    width = store.layout.groups[0].value_dim
    values = rows[..., :1].expand(*rows.shape[:-1], width)
    return store.write(0, store.slots(slots), rows, values)[0]


def bits(rows: Tensor) -> Tensor:
    return rows.contiguous().view(torch.uint8)


@pytest.mark.parametrize("block_size", [1, 2, 4, 5, 16])
def test_a_key_is_the_mean_of_the_first_before_it_and_a_rounded_rest(block_size: int) -> None:
    """Row by row, by the plain formula: the mean of at most four keys as they are read."""
    torch.manual_seed(0)
    store = new_store(block_size)
    rows = torch.randn(KV_HEADS, 3 * block_size, DIM)
    read = write(store, list(range(3 * block_size)), rows)
    turned = keys_of(store).turned(rows)
    for place in range(3 * block_size):
        start = place // block_size * block_size
        before = read[:, start : min(place, start + 4)].double()
        mean = before.mean(1).float() if before.shape[1] else torch.zeros(KV_HEADS, DIM)
        rest = turned[:, place] - mean
        rest = Int4().decode(Int4().encode(rest), torch.empty_like(rest))
        torch.testing.assert_close(read[:, place], mean + rest, atol=1e-5, rtol=1e-5)


def test_alike_neighbours_cost_little_error() -> None:
    """Where keys differ little within a block, most of them are read far nearer than the first."""
    torch.manual_seed(0)
    store = new_store(16)
    rows = torch.randn(KV_HEADS, 1, DIM) * 5 + torch.randn(KV_HEADS, 16, DIM) / 10
    off = (write(store, list(range(16)), rows) - keys_of(store).turned(rows)).abs().amax(-1)
    assert off[:, 4:].max() < off[:, 0].min() / 5


def test_errors_do_not_add_up() -> None:
    """The last key of a long block is as near as the second."""
    torch.manual_seed(0)
    store = new_store(256)
    rows = torch.randn(KV_HEADS, 256, DIM)
    off = write(store, list(range(256)), rows) - keys_of(store).turned(rows)
    rms = off.square().mean((0, 2)).sqrt()
    assert rms[-64:].mean() < 1.1 * rms[1:64].mean()


@dataclass(frozen=True)
class Feeding:
    """Sequences in scattered blocks, and steps that each write a piece of some of them."""

    block_size: int
    dtype: torch.dtype
    value_dim: int  # as the keys' width, both are encoded together
    lengths: tuple[int, ...]
    seed: int


@st.composite
def feedings(draw: st.DrawFn) -> Feeding:
    lengths = draw(st.lists(st.integers(1, 24), min_size=1, max_size=4))
    return Feeding(
        draw(st.sampled_from([2, 3, 4, 5, 8, 16, 16, 64])),
        draw(st.sampled_from([torch.float32, torch.float32, torch.bfloat16])),
        draw(st.sampled_from([DIM, 5])),
        tuple(lengths),
        draw(st.integers(0, 2**16)),
    )


class Fed:
    """A store to which sequences are written piece by piece, and read between."""

    def __init__(self, feeding: Feeding) -> None:
        self.rng = random.Random(feeding.seed)
        torch.manual_seed(feeding.seed)
        self.size = feeding.block_size
        self.store = new_store(feeding.block_size, feeding.dtype, feeding.value_dim)
        self.rows = [torch.randn(KV_HEADS, n, DIM).to(feeding.dtype) for n in feeding.lengths]
        # each by itself and at once: what all else must equal
        self.whole = [
            write(new_store(self.size, feeding.dtype, feeding.value_dim), list(range(n)), rows)
            for n, rows in zip(feeding.lengths, self.rows, strict=True)
        ]
        free = self.rng.sample(range(N_BLOCKS), N_BLOCKS)
        self.slots = [
            [
                block * self.size + offset
                for block in [free.pop() for _ in range(-(-n // self.size))]
                for offset in range(self.size)
            ][:n]
            for n in feeding.lengths
        ]
        self.done = [0] * len(feeding.lengths)

    def step(self, most: int) -> None:
        """Write the next piece of some sequences, their rows packed in any order."""
        open_ones = [index for index, n in enumerate(self.done) if n < len(self.slots[index])]
        slots: list[int] = []
        rows, wanted = [], []
        for index in self.rng.sample(open_ones, self.rng.randint(1, len(open_ones))):
            first = self.done[index]
            self.done[index] = min(first + self.rng.randint(1, most), len(self.slots[index]))
            piece = slice(first, self.done[index])
            slots += self.slots[index][piece]
            rows.append(self.rows[index][:, piece])
            wanted.append(self.whole[index][:, piece])
        order = self.rng.sample(range(len(slots)), len(slots))
        found = write(self.store, [slots[at] for at in order], torch.cat(rows, 1)[:, order])
        assert torch.equal(bits(found), bits(torch.cat(wanted, 1)[:, order]))

    def draft(self) -> None:
        """Write wrong rows after what a sequence has: what comes will take their place."""
        index = self.rng.randrange(len(self.done))
        slots = self.slots[index][self.done[index] :][: self.rng.randint(1, 6)]
        if slots:
            write(self.store, slots, torch.randn(KV_HEADS, len(slots), DIM).to(self.rows[0].dtype))

    def read(self) -> None:
        """Compare runs, and picked rows of all sequences, with what they are as a whole."""
        kept = keys_of(self.store)
        slots: list[int] = []
        wanted = []
        for index, n in enumerate(self.done):
            picked = [self.rng.randrange(n) for _ in range(min(n, 5))]
            slots += [self.slots[index][place] for place in picked]
            wanted.append(self.whole[index][:, picked])
            if n:
                first = self.rng.randrange(n)
                start = self.slots[index][first]
                stop = start
                while stop - start < n - first and self.slots[index][first + stop - start] == stop:
                    stop += 1
                run = kept.run(slice(start, stop))
                assert torch.equal(
                    bits(run), bits(self.whole[index][:, first : first + stop - start])
                )
        found = kept.at(self.store.slots(slots))
        assert torch.equal(bits(found), bits(torch.cat(wanted, 1)))


@settings(max_examples=40)
@given(feeding=feedings(), most=st.sampled_from([1, 3, 17]), has_drafts=st.booleans())
def test_pieces_order_and_neighbours_change_no_bit(
    feeding: Feeding, most: int, has_drafts: bool
) -> None:
    """However rows are written, and with what beside them, they are read as if written at once."""
    fed = Fed(feeding)
    while fed.done != list(feeding.lengths):
        fed.step(most)
        fed.read()
        if has_drafts:
            fed.draft()
            fed.read()


@pytest.mark.parametrize("n_tokens", [1, 3, 4, 5, 15])
def test_a_copied_part_of_a_block_goes_on_as_the_original(n_tokens: int) -> None:
    """What is written after the copy is what would be written after all of it was computed."""
    torch.manual_seed(0)
    store = new_store(16)
    rows, others = torch.randn(2, KV_HEADS, 16, DIM)
    whole = write(store, list(range(16, 32)), rows)
    write(store, list(range(48, 64)), torch.cat([rows[:, :n_tokens], others[:, n_tokens:]], 1))
    store.copy_block(0, BlockId(3), BlockId(7), n_tokens)
    write(store, list(range(112 + n_tokens, 128)), rows[:, n_tokens:])
    assert torch.equal(keys_of(store).run(slice(112, 128)), whole)


@pytest.mark.parametrize("n_good", range(1, 17))
def test_what_comes_later_in_a_block_spreads_to_nothing_before_it(n_good: int) -> None:
    """NaN in all later rows of a block, and in other blocks, changes no row that is read."""
    torch.manual_seed(0)
    store = new_store(16)
    rows = torch.randn(KV_HEADS, 16, DIM)
    whole = write(store, list(range(32, 48)), rows)
    spoil(plane[:, 32 + n_good :] for plane in store.layer(0))
    kept = keys_of(store)
    room = torch.full((KV_HEADS, 16, DIM), torch.nan)
    assert torch.equal(kept.run(slice(32, 32 + n_good), room), whole[:, :n_good])
    assert torch.equal(kept.at(store.slots(range(32, 32 + n_good)), room), whole[:, :n_good])


def test_a_decode_step_takes_one_round_and_a_new_block_five() -> None:
    """Rows of different blocks are written at once; only a block's first rows wait for another."""
    store = new_store(16)
    assert len(store.slots([16, 33, 50, 79]).rounds) == 1
    assert len(store.slots(range(20, 32)).rounds) == 1
    assert len(store.slots(range(18, 40)).rounds) == 5
    rounds = store.slots(range(64)).rounds
    assert [len(each.slots) for each in rounds] == [4, 4, 4, 4, 48]
