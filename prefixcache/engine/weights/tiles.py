"""Products and modules whose rows have the same bits whatever other rows there are."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from prefixcache.engine.steady import row_by_row, tile_by_tile
from prefixcache.engine.weights.experts import PackedExperts
from prefixcache.engine.weights.modules import LinearPart, PackedLinear, SmallEmbedding
from prefixcache.engine.weights.products import Int8Product, Packer, Product
from prefixcache.errors import ConfigError

LEAST_ROWS = 4  # of a tile: with fewer, kernels of vectors take over
TILE_ROWS = (4, 8, 16, 32, 128)
_ANGLES = 32  # positions at a time, whatever their width: an even number of elements
_ROW_WISE_ALREADY = (
    PackedLinear,
    LinearPart,
    PackedExperts,
    SmallEmbedding,
    nn.Embedding,
    nn.Dropout,
    nn.Identity,
)


class TiledProduct:
    """A product that is only ever asked for as many rows as one of `sizes`."""

    def __init__(self, product: Product, sizes: tuple[int, ...]) -> None:
        """`sizes` ascend; the product gives a row the same bits in each of them."""
        self._product, self._sizes = product, sizes

    def __call__(self, rows: Tensor) -> Tensor:
        """See `Product`."""
        found, start = [], 0
        for size in tile_sizes(len(rows), self._sizes):
            tile = rows[start : start + size]
            if missing := size - len(tile):
                tile = torch.cat([tile, tile[-1:].expand(missing, -1)])
            found.append(self._product(tile.contiguous()))
            start += size
        output = found[0] if len(found) == 1 else torch.cat(found)
        return output[: len(rows)]


def tile_sizes(n_rows: int, sizes: tuple[int, ...]) -> Iterator[int]:
    """Yield the tiles that `n_rows` go in. A tile may be padded by half of what it holds.

    Few rows go in one tile at all events: reading the matrix again costs more.
    """
    while n_rows > 0:
        above = [size for size in sizes if size >= n_rows]
        if above and (above[0] * 2 <= n_rows * 3 or n_rows <= 16):
            yield above[0]
            return
        size = max((size for size in sizes if size <= n_rows), default=sizes[0])
        yield size
        n_rows -= size


class TiledPacker:
    """Packs matrices so that rows do not depend on one another.

    Which sizes of tiles agree is tried once for each shape of a matrix, with random numbers:
    what differs between them is the order of sums, which is the kernel's and not the numbers'.
    """

    def __init__(self, pack: Packer) -> None:
        self._pack = pack
        self._sizes: dict[torch.Size, tuple[int, ...]] = {}

    def __call__(self, weight: Tensor, bias: Tensor | None) -> Product:
        """Return the product of `weight`.

        Raises:
            ConfigError: a row's result depends on its place even in the smallest tile.
        """
        product = self._pack(weight, bias)
        if isinstance(product, Int8Product):
            return product  # whole numbers add up to the same in any order
        if weight.shape not in self._sizes:
            self._sizes[weight.shape] = agreeing_sizes(product, weight.shape[1])
        return TiledProduct(product, self._sizes[weight.shape])


def agreeing_sizes(product: Product, in_features: int) -> tuple[int, ...]:
    """Return which of `TILE_ROWS` give each row the same bits, in every place of the least.

    Raises:
        ConfigError: not even the least tile does.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(TILE_ROWS[-1], in_features, generator=generator)
    wanted = _in_tiles(product, rows, LEAST_ROWS)
    for shift in range(1, LEAST_ROWS):
        found = product(rows[:LEAST_ROWS].roll(shift, 0)).roll(-shift, 0)
        if not torch.equal(found, wanted[:LEAST_ROWS]):
            reason = "this machine's products give a row other bits in another place"
            raise ConfigError("invariant", True, reason)
    return tuple(size for size in TILE_ROWS if torch.equal(_in_tiles(product, rows, size), wanted))


def _in_tiles(product: Product, rows: Tensor, size: int) -> Tensor:
    return torch.cat([product(tile.contiguous()) for tile in torch.split(rows, size)])


class RowWise(nn.Module):
    """A norm, an activation or a router, taken in pieces that are computed evenly."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original = original

    def forward(self, inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return what the original gives for [..., width]."""
        has_matrix = any(parameter.dim() > 1 for parameter in self.original.parameters())
        return (tile_by_tile if has_matrix else row_by_row)(self.original, inputs)


class RowWiseAngles(nn.Module):
    """A model's rotary angles, an even number of positions at a time."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original = original

    def forward(
        self, inputs: Tensor, position_ids: Tensor, *arguments: object, **extras: object
    ) -> tuple[Tensor, Tensor]:
        """Return the original's cosines and sines, each [1, t, dim], for positions [1, t]."""
        n = position_ids.shape[-1]
        missing = -n % _ANGLES
        padded = torch.cat([position_ids, position_ids[:, -1:].expand(-1, missing)], dim=-1)
        found = [
            self.original(inputs, piece, *arguments, **extras)
            for piece in torch.split(padded, _ANGLES, dim=-1)
        ]
        cosines, sines = (torch.cat(pieces, dim=1)[:, :n] for pieces in zip(*found, strict=True))
        return cosines, sines


def make_row_wise(model: nn.Module) -> None:
    """Wrap every norm, activation and source of angles in `model`, in place."""
    wrapped: dict[int, nn.Module] = {}
    for parent in list(model.modules()):
        if isinstance(parent, _ROW_WISE_ALREADY):
            continue
        for name, child in list(parent.named_children()):
            if isinstance(child, _ROW_WISE_ALREADY) or list(child.children()):
                continue
            if id(child) not in wrapped:
                is_angles = "Rotary" in type(child).__name__
                wrapped[id(child)] = RowWiseAngles(child) if is_angles else RowWise(child)
            setattr(parent, name, wrapped[id(child)])
