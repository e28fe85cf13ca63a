"""Packing token ids and comparing them."""

from __future__ import annotations

import ctypes
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache.errors import TokenIdError
from prefixcache.index.tokens import common_prefix_tokens, n_tokens, pack, unpack

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(IDS)
def test_unpacking_gives_back_what_was_packed(ids: list[int]) -> None:
    """Every list of ids survives packing, four bytes each."""
    packed = pack(ids)
    assert len(packed) == 4 * len(ids) == 4 * n_tokens(packed)
    assert unpack(packed) == ids


def test_the_packed_form_is_little_endian_on_every_machine() -> None:
    """Packed ids can be compared across processes and machines."""
    assert pack([1, 0x01020304]) == bytes([1, 0, 0, 0, 4, 3, 2, 1])


@pytest.mark.parametrize(
    "ids",
    [
        (1, 2, 300),
        range(1, 4),
        array("I", [1, 2, 300]),
        array("i", [1, 2, 300]),
        array("q", [1, 2, 300]),
        array("H", [1, 2, 300]),
        pytest.param(memoryview(array("I", [1, 9, 2, 9, 300]))[::2], id="every second item"),
    ],
    ids=repr,
)
def test_sequences_and_integer_buffers_pack_alike(ids: object) -> None:
    """The container does not matter, nor its item size, nor gaps between items."""
    assert pack(ids) == pack(list(ids))  # type: ignore[call-overload, arg-type]


@pytest.mark.parametrize("order", ["__ctype_le__", "__ctype_be__"])
@pytest.mark.parametrize("kind", [ctypes.c_uint32, ctypes.c_int32, ctypes.c_int64])
def test_a_buffer_that_states_its_byte_order_is_read_in_it(order: str, kind: type) -> None:
    """The same ids in either byte order pack to the same bytes."""
    items = (getattr(kind, order) * 3)(1, 2, 70_000)
    assert pack(items) == pack([1, 2, 70_000])


@pytest.mark.parametrize(
    "wrong",
    [
        [1, -1],
        [2**32],
        [1, "2"],
        [1.0],
        [None],
        "12",
        b"\x01\x00\x00\x00",
        5,
        array("i", [1, -2]),
        array("q", [2**40]),
        array("f", [1.0]),
        pytest.param(memoryview(bytes(16)).cast("I", (2, 2)), id="two dimensions"),
    ],
    ids=repr,
)
def test_what_is_no_token_id_is_refused(wrong: object) -> None:
    """Negative, large, fractional and textual ids raise, whatever holds them."""
    with pytest.raises(TokenIdError):
        pack(wrong)  # type: ignore[arg-type]


def test_the_error_names_the_first_wrong_id() -> None:
    """A caller learns which of its ids was wrong."""
    with pytest.raises(TokenIdError, match="-7"):
        pack([1, -7, 2**33])
    with pytest.raises(TokenIdError, match="-2"):
        pack(array("i", [1, -2]))


def test_half_a_token_is_refused() -> None:
    """Packed ids are a multiple of four bytes."""
    for look in (unpack, n_tokens):
        with pytest.raises(TokenIdError):
            look(b"\x01\x00\x00")


@given(IDS, IDS, IDS, st.integers(0, 3), st.integers(0, 3))
def test_the_common_prefix_is_counted_in_whole_tokens(
    shared: list[int], a_rest: list[int], b_rest: list[int], a_skip: int, b_skip: int
) -> None:
    """The count equals that of a token-by-token comparison, from any two starts."""
    a, b = [9] * a_skip + shared + a_rest, [8] * b_skip + shared + b_rest
    expected = 0
    for x, y in zip(a[a_skip:], b[b_skip:], strict=False):
        if x != y:
            break
        expected += 1
    assert common_prefix_tokens(pack(a), a_skip, pack(b), b_skip) == expected


@pytest.mark.parametrize("at", [0, 1, 15, 16, 17, 999, 1000, 4094])
def test_one_different_bit_in_a_long_prompt_is_found(at: int) -> None:
    """Tokens that differ in their highest bit alone are different."""
    ids = list(range(4095))
    other = list(ids)
    other[at] ^= 1 << 31
    assert common_prefix_tokens(pack(ids), 0, pack(other), 0) == at


def test_a_start_beyond_the_end_shares_nothing() -> None:
    """Comparing an empty rest gives 0."""
    assert common_prefix_tokens(pack([1]), 1, pack([1]), 0) == 0
    assert common_prefix_tokens(pack([1]), 2, pack([1]), 0) == 0


def test_this_suite_runs_where_plain_arrays_are_four_bytes() -> None:
    """The packing relies on 4-byte array items."""
    assert array("I").itemsize == 4
    assert sys.byteorder in ("little", "big")
