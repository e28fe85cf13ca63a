"""What the kernels of invariant mode are cut into: rows by themselves, and tiles of rows."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from prefixcache.engine.steady import row_by_row, tile_by_tile
from prefixcache.engine.weights import tiles


@pytest.mark.parametrize("n_rows", [1, 2, 31, 32, 33, 600])
@pytest.mark.parametrize("width", [1, 31, 576, 40_000])
def test_a_row_by_itself_is_a_row_among_many(n_rows: int, width: int) -> None:
    """An activation whose vectors and ends differ gives each row the same bits."""
    if n_rows * width > 1_500_000:
        n_rows = 3
    rows = torch.randn(n_rows, width, generator=torch.Generator().manual_seed(1)) * 3
    found = row_by_row(functional.silu, rows)
    assert found.shape == rows.shape
    for row in {0, n_rows // 2, n_rows - 1}:
        assert torch.equal(found[row], row_by_row(functional.silu, rows[row]))
    torch.testing.assert_close(found, functional.silu(rows))


def test_every_row_of_a_long_gelu_is_as_alone() -> None:
    """Gelu is cut for threads earlier than other activations: no row changes with its place."""
    gelu = functools.partial(functional.gelu, approximate="tanh")
    rows = torch.randn(341, 96, generator=torch.Generator().manual_seed(1)) * 3
    alone = torch.cat([row_by_row(gelu, row) for row in torch.split(rows, 1)])
    assert torch.equal(row_by_row(gelu, rows), alone)


def test_what_multiplies_is_asked_for_as_many_rows_each_time() -> None:
    """A tile is padded with its last row; one tensor or several come back, a row for each."""
    asked = []

    def router(rows: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(len(rows))
        return rows * 2, rows.argmax(-1)

    rows = torch.randn(37, 5, generator=torch.Generator().manual_seed(1))
    found = tile_by_tile(router, rows)
    assert len(set(asked)) == 1
    assert torch.equal(found[0], rows * 2)
    assert torch.equal(found[1], rows.argmax(-1))
    assert torch.equal(torch.as_tensor(tile_by_tile(torch.neg, rows)), -rows)


def test_activations_have_uneven_ends() -> None:
    """What pieces are for: torch's own result for a row does depend on where it stands."""
    rows = torch.randn(4000, 31, generator=torch.Generator().manual_seed(1)) * 3
    alone = torch.cat([functional.silu(row) for row in torch.split(rows, 1)])
    assert not torch.equal(functional.silu(rows), alone)


@pytest.mark.parametrize("n_rows", [1, 3, 4, 9, 16, 17, 40, 127, 129, 1024])
def test_tiles_hold_all_rows(n_rows: int) -> None:
    """They are as few as is worth it, and pad less than as much again, beyond the least."""
    sizes = list(tiles.tile_sizes(n_rows, tiles.TILE_ROWS))
    assert n_rows <= sum(sizes) <= max(4, 2 * n_rows)
    assert set(sizes) <= set(tiles.TILE_ROWS)
    assert sum(sizes[:-1]) < n_rows
