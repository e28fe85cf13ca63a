"""Blocks of a store, copied to the host and back."""

from __future__ import annotations

import pytest
import torch

from prefixcache.index import pack
from prefixcache.kv import KVLayout, KVStore, LayerGroup
from prefixcache.tiers import StoredNamespace, StoredScope, chain_keys
from prefixcache.types import BlockId, Span

GROUPS = (LayerGroup((0, 2), 3, 8, 4, None), LayerGroup((1,), 1, 8, 8, 16))
SHOP = StoredNamespace(model=b"m" * 16, adapter=None, tenant=b"t" * 16, salt=None)


@pytest.fixture
def store() -> KVStore:
    """Ten blocks of two groups, all numbers different."""
    store = KVStore(KVLayout(GROUPS, 4, torch.float16), 10, torch.device("cpu"))
    for layer in range(3):
        for tensor in store.layer(layer):
            tensor.copy_(torch.randn(tensor.shape))
    return store


@pytest.mark.parametrize("group", [0, 1])
def test_what_is_copied_out_and_in_is_the_same_bits(store: KVStore, group: int) -> None:
    """Blocks that went out and came back elsewhere equal those that they were, in each layer."""
    before = store.copy_out(group, Span(BlockId(2), 3))
    store.copy_in(group, Span(BlockId(6), 3), before)
    for layer in GROUPS[group].layers:
        for tensor in store.layer(layer):
            assert torch.equal(tensor[:, 8:20], tensor[:, 24:36])
    assert before.shape == (3, store.block_bytes(group))


def test_a_copy_touches_no_other_block(store: KVStore) -> None:
    """Only the blocks of the span are written."""
    others = [(1, slice(0, 24)), (1, slice(28, 40)), (0, slice(0, 40))]
    kept = [store.layer(layer)[0][:, slots].clone() for layer, slots in others]
    store.copy_in(1, Span(BlockId(6), 1), store.copy_out(1, Span(BlockId(1), 1)))
    for (layer, slots), copy in zip(others, kept, strict=True):
        assert torch.equal(store.layer(layer)[0][:, slots], copy)


def test_one_block_reads_as_in_a_longer_span(store: KVStore) -> None:
    """A row is one block's, whatever stood beside it."""
    three = store.copy_out(0, Span(BlockId(2), 3))
    assert torch.equal(store.copy_out(0, Span(BlockId(3), 1))[0], three[1])


@pytest.mark.parametrize("group", [0, 1])
def test_rows_may_lie_apart_and_at_odd_places(store: KVStore, group: int) -> None:
    """As they do among the heads of records that were read in one; a room is written in place."""
    n_bytes, span = store.block_bytes(group), Span(BlockId(2), 3)
    room = torch.zeros((3, n_bytes + 7), dtype=torch.uint8)
    rows = room[:, 5 : 5 + n_bytes]
    assert store.copy_out(group, span, rows) is rows
    assert not room[:, :5].any()
    assert not room[:, 5 + n_bytes :].any()
    store.copy_in(group, Span(BlockId(6), 3), rows)
    assert torch.equal(store.copy_out(group, Span(BlockId(6), 3)), store.copy_out(group, span))


def test_keys_name_a_block_and_all_before_it() -> None:
    """Prompts share the keys of their common whole blocks, and no others."""
    root = SHOP.root_key()
    ours = chain_keys(root, pack([1, 2, 3, 4, 5, 6, 7]), 2)
    theirs = chain_keys(root, pack([1, 2, 3, 9, 5, 6]), 2)
    assert len(ours) == len(theirs) == 3
    assert [a == b for a, b in zip(ours, theirs, strict=True)] == [True, False, False]


def test_keys_of_different_namespaces_differ() -> None:
    """No tenant's key is another's, for equal tokens."""
    other = StoredNamespace(model=b"m" * 16, adapter=None, tenant=b"u" * 16, salt=None)
    assert chain_keys(SHOP.root_key(), pack([1, 2]), 2) != chain_keys(
        other.root_key(), pack([1, 2]), 2
    )


def test_a_scope_holds_what_has_its_fields() -> None:
    """A scope compares the fields that it has, and the bare one holds all."""
    assert StoredScope().holds(SHOP)
    assert StoredScope(tenant=b"t" * 16).holds(SHOP)
    assert not StoredScope(tenant=b"t" * 16, model=b"n" * 16).holds(SHOP)
    assert not StoredScope(adapter=b"a" * 16).holds(SHOP)
