"""Each KV format: what comes back is near what was written, whatever stands beside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from prefixcache.errors import ConfigError
from prefixcache.kv import KVLayout, KVStore, LayerGroup, kv_format, require_format
from prefixcache.kv.codecs import Cast, Codec, Int8
from prefixcache.kv.int4 import Int4
from prefixcache.kv.turning import Turning
from prefixcache.types import BlockId, Span
from tests.support.kv import KV_FORMATS, spoil

CPU = torch.device("cpu")
CODECS: dict[str, Codec] = {
    "float16": Cast(torch.float16),
    "bfloat16": Cast(torch.bfloat16),
    "fp8": Cast(torch.float8_e4m3fn),
    "int8": Int8(),
    "int4": Int4(),
}
TINY = 2.0**-9  # of the largest of a row: what float16 and its like may lose beside


def back(codec: Codec, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return codec.decode(codec.encode(rows), torch.empty(rows.shape, dtype=dtype))


@st.composite
def rows(draw: st.DrawFn) -> Tensor:
    """Rows of many widths, some of them flat, shifted or with a number that stands out."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    dim = draw(st.sampled_from([1, 5, 8, 24, 64, 80, 128]))
    found = torch.randn(draw(st.integers(1, 5)), dim) * 10.0 ** draw(st.integers(-3, 2))
    found += draw(st.sampled_from([0.0, 0.0, 3.0, -40.0]))
    if draw(st.booleans()):
        found[0, draw(st.integers(0, dim - 1))] = draw(st.sampled_from([300.0, -300.0]))
    if draw(st.booleans()):
        found[-1] = draw(st.sampled_from([0.0, 1.5]))
    return found


def most_off(name: str, found: Tensor) -> Tensor | Any:
    """Return the largest error that a format may make of each number."""
    largest = found.abs().amax(-1, keepdim=True)
    if name == "int8":
        return largest * (0.5 / 127 + TINY) + 1e-5
    if name == "int4":
        group = max(n for n in range(1, min(found.shape[-1], 32) + 1) if found.shape[-1] % n == 0)
        groups = found.view(len(found), -1, group)
        span = groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)
        return (span.expand_as(groups).flatten(-2) / 30) * (1 + TINY) + largest * TINY + 1e-5
    bits = {"float16": 11, "bfloat16": 8, "fp8": 4}[name]
    return found.abs() * 2.0**-bits + {"fp8": 2.0**-10}.get(name, 1e-7)


@pytest.mark.parametrize("name", KV_FORMATS)
@given(found=rows())
def test_numbers_come_back_within_the_formats_bound(name: str, found: Tensor) -> None:
    """No number is off by more than half a step of its group, whatever stands out beside it."""
    assert ((back(CODECS[name], found) - found).abs() <= most_off(name, found)).all()


@pytest.mark.parametrize("name", KV_FORMATS)
@given(found=rows())
def test_a_row_depends_on_no_other(name: str, found: Tensor) -> None:
    """Encoded alone or among others, the bytes are the same."""
    whole = CODECS[name].encode(found)
    for index in range(len(found)):
        for plane, alone in zip(whole, CODECS[name].encode(found[index : index + 1]), strict=True):
            assert torch.equal(plane[index].view(torch.uint8), alone[0].view(torch.uint8))


@pytest.mark.parametrize("name", KV_FORMATS)
def test_zeros_and_nan_come_back_as_they_are(name: str) -> None:
    """A row of zeros is exact, and a row with NaN is never mistaken for numbers."""
    found = torch.zeros(2, 64)
    found[1, 3] = torch.nan
    again = back(CODECS[name], found)
    assert torch.equal(again[0], found[0])
    assert again[1, 3].isnan()


@pytest.mark.parametrize("name", KV_FORMATS)
def test_what_is_too_large_stays_finite(name: str) -> None:
    """A number beyond a format's range becomes the largest that there is, with its sign."""
    again = back(CODECS[name], torch.tensor([[1e6, -1e6]]))
    assert again.isfinite().all()
    assert again[0, 0] > 0 > again[0, 1]


@pytest.mark.parametrize("dim", [1, 5, 24, 64, 80])
def test_turning_changes_no_product(dim: int) -> None:
    """Turned queries and keys have the products that they had; no row needs another."""
    turning = Turning(dim, CPU)
    one, other = torch.randn(2, 9, dim)
    products = turning.turned(one) @ turning.turned(other).T
    torch.testing.assert_close(products, one @ other.T, atol=1e-4, rtol=1e-4)
    assert torch.equal(turning.turned(one)[:1], turning.turned(one[:1]))


def test_turning_spreads_what_stands_out() -> None:
    """One large number among small ones is no longer large."""
    row = torch.zeros(1, 64)
    row[0, 5] = 8.0
    torch.testing.assert_close(Turning(64, CPU).turned(row).abs(), torch.ones(1, 64))


def small_store(name: str) -> KVStore:
    groups = (LayerGroup((0, 2), 3, 8, 5, None), LayerGroup((1,), 1, 16, 16, 16))
    store = KVStore(KVLayout(groups, 4, torch.float32, name), 10, CPU)
    for layer in range(3):
        spoil(store.layer(layer))
    return store


def written(store: KVStore, layer: int, first: int, n: int) -> tuple[Tensor, Tensor]:
    """Write random rows from a slot on and return what the store gives for them."""
    shape = store.layout.groups[store.group_of(layer)]
    keys, values = (torch.randn(shape.kv_heads, n, dim) for dim in (shape.key_dim, shape.value_dim))
    return store.write(layer, store.slots(range(first, first + n)), keys, values)


@pytest.mark.parametrize("name", ["auto", *KV_FORMATS])
def test_what_is_read_is_what_writing_gave(name: str) -> None:
    """In a run or picked out, in a room or not, rows are those that `write` returned."""
    store = small_store(name)
    for layer in range(3):
        for kept, wrote in zip(store.kept(layer), written(store, layer, 8, 12), strict=True):
            room = torch.empty(kept.kv_heads, 20, kept.dim)
            slots = store.slots([9, 17, 8])
            for each in (None, room):
                assert torch.equal(kept.run(slice(8, 20), each), wrote)
            assert torch.equal(kept.at(slots), wrote[:, slots.index - 8])
            assert kept.at(slots, room[:, :3]).isfinite().all()


@pytest.mark.parametrize("name", ["auto", *KV_FORMATS])
@pytest.mark.parametrize("n_tokens", [1, 3, 4])
def test_a_block_is_copied_exactly_up_to_any_position(name: str, n_tokens: int) -> None:
    """A copied part reads as the original, to the bit, and the rest stays unwritten."""
    store = small_store(name)
    wrote = written(store, 1, 8, 4)
    store.copy_block(1, BlockId(2), BlockId(5), n_tokens)
    for kept, rows_read in zip(store.kept(1), wrote, strict=True):
        assert torch.equal(kept.run(slice(20, 20 + n_tokens)), rows_read[:, :n_tokens])
        assert kept.run(slice(20 + n_tokens, 24)).isnan().all()


@pytest.mark.parametrize("name", ["auto", *KV_FORMATS])
def test_blocks_go_out_and_in_with_all_their_planes(name: str) -> None:
    """A block that left and came back elsewhere reads as before; its bytes are as many as said."""
    store = small_store(name)
    wrote = written(store, 0, 8, 12)
    data = store.copy_out(0, Span(BlockId(2), 3))
    assert data.shape == (3, store.block_bytes(0))
    assert data.shape[1] == 4 * store.layout.groups[0].bytes_per_token(store.layout.format)
    store.copy_in(0, Span(BlockId(6), 3), data)
    for kept, rows_read in zip(store.kept(0), wrote, strict=True):
        assert torch.equal(kept.run(slice(24, 36)), rows_read)


def test_bytes_of_a_token_are_those_of_its_planes() -> None:
    """Numbers, scales and ranges count, and nothing else; memory divides into more blocks."""
    group = LayerGroup(tuple(range(30)), 3, 64, 64, None)
    wanted = {"float32": 512, "float16": 256, "fp8": 128, "int8": 132, "int4": 80}
    for name, n_bytes in wanted.items():
        layout = KVLayout((group,), 16, torch.float32, name)
        assert layout.bytes_per_token == 30 * 3 * n_bytes
        pools = layout.pools_within(2**24, longest_tokens=None, chunk_tokens=256, least_blocks=1)
        assert pools.n_blocks == 2**24 // (16 * layout.bytes_per_token)


def test_unknown_and_unserved_formats_are_refused() -> None:
    """The message names what there is, or why a device has it not."""
    with pytest.raises(ConfigError, match="int8, int4"):
        kv_format("int3", torch.float32)
    with pytest.raises(ConfigError, match="int8 takes as much room"):
        require_format("fp8", CPU)
