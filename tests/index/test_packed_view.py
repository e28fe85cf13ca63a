"""Token ids in whatever holds them."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
import torch

from prefixcache.errors import TokenIdError
from prefixcache.index import packed_view


def _is_view(ids: object) -> bool:
    """Return whether what is written to `ids` later shows in its packed view."""
    view = packed_view(ids)  # type: ignore[arg-type]
    before = bytes(view)
    ids[0] = 9  # type: ignore[index]
    return isinstance(view, memoryview) and bytes(view) != before


@pytest.mark.parametrize("kind", ["uint32", "int32"])
def test_a_buffer_of_four_byte_integers_is_not_copied(kind: str) -> None:
    """Arrays of numpy and torch tensors too, as far as no id is negative."""
    assert _is_view(np.array([1, 2, 3], kind))
    assert _is_view(torch.tensor([1, 2, 3], dtype=getattr(torch, kind)))
    assert _is_view(array("I" if kind == "uint32" else "i", [1, 2, 3]))


@pytest.mark.parametrize(
    "ids",
    [
        [1, 2, 2**32 - 1],
        (1, 2, 2**32 - 1),
        array("I", [1, 2, 2**32 - 1]),
        array("q", [1, 2, 2**32 - 1]),
        np.array([1, 2, 2**32 - 1], "uint32"),
        np.array([1, 2, 2**32 - 1], ">u4"),
        np.array([1, 2, 2**32 - 1], "int64"),
        np.array([1, 2, 2**32 - 1], ">i8"),
        np.array([1, 0, 2, 0, 2**32 - 1], "uint32")[::2],
        torch.tensor([1, 2, 2**32 - 1]),
        torch.tensor([1, 0, 2, 0, 2**32 - 1])[::2],
    ],
    ids=lambda ids: f"{type(ids).__name__}-{getattr(ids, 'dtype', '')}",
)
def test_whatever_holds_the_ids_is_viewed_alike(ids: object) -> None:
    """Whatever width, byte order or stride."""
    view = packed_view(ids)  # type: ignore[arg-type]
    assert bytes(view) == b"\1\0\0\0\2\0\0\0\xff\xff\xff\xff"


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", ">i4", ">i8"])
def test_a_negative_id_is_refused_in_every_width(kind: str) -> None:
    """It is no large positive one."""
    with pytest.raises(TokenIdError):
        packed_view(np.array([1, -1], kind))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        np.array(["2020-01-01"], "M8[D]"),
        torch.tensor([1.0], requires_grad=True),
        torch.tensor([1.0], dtype=torch.bfloat16),
        torch.tensor([1, 2], device="meta"),
    ],
    ids=["date", "grad", "bfloat16", "meta"],
)
def test_what_cannot_be_read_as_a_buffer_is_refused_alike(wrong: object) -> None:
    """One error for everything that holds no token ids."""
    with pytest.raises(TokenIdError):
        packed_view(wrong)  # type: ignore[arg-type]
