"""Attention of invariant mode: tiles of rows over segments of keys, merged in order of position.

Every kernel call has the same innermost shapes (`engine/segments.py`). The merge multiplies and
adds in separate calls, never fused: a fused one rounds otherwise, and which elements it gets
depends on their place. A segment of which a row sees nothing leaves the row as it is, bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from prefixcache.engine.segments import SEGMENT_TOKENS, TILE_TOKENS, FixedReads, SegmentPart
from prefixcache.engine.softmax import Scores, softmax_attention
from prefixcache.engine.steady import steady_exp
from prefixcache.kv import Kept


def fixed_attention(
    query: Tensor,
    keys: Kept,
    values: Kept,
    reads: FixedReads,
    scores: Scores,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend from the rows of a step to the store, which holds their own keys already.

    Args:
        query: [heads, t, key_dim].
        keys, values: the store's.
        reads: the plan of this step.
        scores: how scores are made.
        sinks: [heads], one more score for every row, with no value; merged last.

    Returns:
        [1, t, heads, value_dim].
    """
    heads, n_rows, dim = query.shape
    kv_heads = keys.kv_heads
    group = heads // kv_heads
    rows = query.view(kv_heads, group, n_rows, dim).transpose(1, 2)
    tiles = rows.index_select(1, reads.gather).view(kv_heads, -1, TILE_TOKENS * group, dim)
    merge = _Merge(tiles, values.dim)
    for part in reads.parts:
        found = _attended(tiles[:, part.tiles], keys, values, part, scores, group)
        merge.take(part.tiles, *found)
    if sinks is not None:
        merge.take_sinks(sinks.to(tiles.dtype).view(kv_heads, 1, group).repeat(1, 1, TILE_TOKENS))
    output = merge.output().view(kv_heads, -1, group, values.dim)
    taken = output.index_select(1, reads.places).transpose(0, 1)
    return taken.reshape(1, n_rows, heads, -1)


def _attended(
    query: Tensor, keys: Kept, values: Kept, part: SegmentPart, scores: Scores, group: int
) -> tuple[Tensor, Tensor]:
    kv_heads = keys.kv_heads
    wide = (kv_heads, query.shape[1], SEGMENT_TOKENS, -1)
    if isinstance(part.slots, slice):
        key, value = keys.run(part.slots), values.run(part.slots)
    else:
        key, value = keys.at(part.slots), values.at(part.slots)
    return softmax_attention(
        query,
        key.view(kv_heads, part.n_sources, SEGMENT_TOKENS, -1).expand(wide),
        value.view(kv_heads, part.n_sources, SEGMENT_TOKENS, -1).expand(wide),
        scores,
        None if part.mask is None else part.mask.bias(group, query.dtype),
    )


class _Merge:
    """The online softmax over segments, for every tile by itself."""

    def __init__(self, tiles: Tensor, value_dim: int) -> None:
        shape = tiles.shape[:3]
        self._output = tiles.new_zeros((*shape, value_dim))
        self._weight = tiles.new_zeros(shape)
        self._largest = tiles.new_full(shape, -torch.inf)

    def take(self, tiles: slice, output: Tensor, lse: Tensor) -> None:
        """Take one more segment's output and finite log-sum-exp for some tiles."""
        largest = self._largest[:, tiles]
        above = torch.maximum(largest, lse)
        kept, new = steady_exp(torch.stack([largest - above, lse - above]))
        self._output[:, tiles].mul_(kept.unsqueeze(-1)).add_(output * new.unsqueeze(-1))
        self._weight[:, tiles].mul_(kept).add_(new)
        largest.copy_(above)

    def take_sinks(self, sinks: Tensor) -> None:
        """Take a score without a value for each row of a tile, [kv_heads, 1, rows]."""
        nothing = torch.zeros_like(self._output)
        self.take(slice(None), nothing, sinks.expand_as(self._largest))

    def output(self) -> Tensor:
        """Return what all segments give, [kv_heads, tiles, rows, value_dim]."""
        return self._output.div_(self._weight.unsqueeze(-1))
