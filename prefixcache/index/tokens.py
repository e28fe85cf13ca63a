"""Token ids packed as little-endian unsigned 32-bit integers, four bytes each."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefixcache.errors import TokenIdError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Packed = bytes | memoryview  # a view is of bytes, one-dimensional and contiguous

TOKEN_BYTES = 4

_UNSIGNED = frozenset("HILQ")
_SIGNED = frozenset("hilq")
_CODE_OF_BYTES = {2: "h", 4: "i", 8: "q"}  # array's signed type codes by item size
_MAX_ID = 2**32 - 1
_NARROW_BYTES = 64  # below this, one integer comparison is cheaper than another halving


def pack(ids: Sequence[int] | Buffer) -> bytes:
    """Return `ids` as packed bytes, whatever they came in.

    Args:
        ids: integers from 0 to 2**32 - 1: a sequence, or a one-dimensional buffer of integers
            (array, numpy, a torch tensor on the CPU). Bytes are refused: they are text or packed
            already.

    Raises:
        TokenIdError: something in it is no such integer.

    Cost: one copy of a buffer of 4-byte items; about 20 ns a token from a list.
    """
    packed = packed_view(ids)
    return packed if isinstance(packed, bytes) else bytes(packed)


def packed_view(ids: Sequence[int] | Buffer) -> Packed:
    """Return `ids` packed, without a copy where they are a buffer of 4-byte integers already.

    A view shows what its owner writes later, so it is for a look-up, not for keeping. Arguments
    and errors are those of `pack`.
    """
    view = _buffer_of(ids)
    if view is None:
        return _pack_sequence(ids)  # type: ignore[arg-type]
    return _pack_view(view)


def unpack(packed: Packed) -> list[int]:
    """Return the ids of `packed` as a list. Raises TokenIdError on half a token."""
    n_tokens(packed)
    ids = array("I", packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def n_tokens(packed: Packed) -> int:
    """Return how many tokens `packed` holds. Raises TokenIdError on half a token."""
    whole, rest = divmod(len(packed), TOKEN_BYTES)
    if rest:
        raise TokenIdError(f"{len(packed)} packed bytes")
    return whole


def common_prefix_tokens(a: bytes, a_start: int, b: bytes | memoryview, b_start: int) -> int:
    """Return how many leading tokens `a` from `a_start` and `b` from `b_start` share.

    Args:
        a, b: packed ids; a_start, b_start: positions in tokens.

    Cost: compares memory, at most about twice the shared length; nothing is looked at token
    by token.
    """
    left, right = a_start * TOKEN_BYTES, b_start * TOKEN_BYTES
    view = memoryview(b)
    n_bytes = min(len(a) - left, len(b) - right)
    if n_bytes <= 0:
        return 0
    while n_bytes > _NARROW_BYTES:  # the first difference, if any, lies in the next n_bytes
        half = n_bytes // 2
        if a.startswith(view[right : right + half], left):
            left, right = left + half, right + half
            n_bytes -= half
        else:
            n_bytes = half
    difference = _integer(a[left : left + n_bytes]) ^ _integer(view[right : right + n_bytes])
    lowest_bit = (difference & -difference).bit_length() - 1
    n_equal = lowest_bit // 8 if difference else n_bytes
    return (left + n_equal) // TOKEN_BYTES - a_start


def _integer(part: bytes | memoryview) -> int:
    return int.from_bytes(part, "little")


def _buffer_of(ids: object) -> memoryview | None:
    try:
        return memoryview(ids)  # type: ignore[arg-type]
    except TypeError:
        as_array = getattr(ids, "__array__", None)  # a torch tensor has one, and no buffer
    except ValueError as error:  # a numpy array of dates
        raise TokenIdError(ids) from error
    if as_array is None:
        return None
    try:
        return memoryview(as_array())
    except (TypeError, ValueError, RuntimeError) as error:  # elsewhere, with a gradient, bfloat16
        raise TokenIdError(ids) from error


def _pack_view(view: memoryview) -> Packed:
    order, kind = view.format[0], view.format.lstrip("@=<>!")
    if view.ndim != 1 or kind not in _UNSIGNED | _SIGNED:
        raise TokenIdError(f"a {view.ndim}-dimensional buffer of items {view.format!r}")
    is_big = order in ">!" or (order != "<" and sys.byteorder == "big")
    if view.itemsize == TOKEN_BYTES and not is_big and view.c_contiguous:
        packed = view.cast("B")
        if kind in _UNSIGNED or bytes(packed[TOKEN_BYTES - 1 :: TOKEN_BYTES]).isascii():
            return packed  # no id has its highest bit set, so none is negative
    code = _CODE_OF_BYTES[view.itemsize]
    items = array(code if kind in _SIGNED else code.upper(), view.tobytes())
    if is_big != (sys.byteorder == "big"):
        items.byteswap()
    return _pack_sequence(items)


def _pack_sequence(ids: Sequence[int]) -> bytes:
    try:
        packed = array("I", ids)
    except (TypeError, OverflowError) as error:
        raise TokenIdError(_first_wrong(ids)) from error
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _first_wrong(ids: object) -> object:
    if not isinstance(ids, Sequence) or isinstance(ids, str):
        return ids
    wrong = (i for i in ids if not isinstance(i, int) or not 0 <= i <= _MAX_ID)
    return next(wrong, type(ids).__name__)
