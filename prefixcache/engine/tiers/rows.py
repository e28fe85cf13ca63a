"""Records' parts as rows of tensors, so that many blocks are written to a store at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided

from prefixcache.index import Packed

_BATCH_ROWS = 64  # that are put together by a copy


def in_rows(parts: Sequence[Packed]) -> Iterator[torch.Tensor]:
    """Yield parts of one length as rows of few tensors, uint8 [n, bytes of a part].

    Those that lie at equal distances in one buffer, as records do that were read in one call, are
    rows as they lie. Others are copied, some at a time.
    """
    first = 0
    while first < len(parts):
        n_rows = _n_in_step(parts, first)
        if n_rows:
            views = [np.frombuffer(part, dtype=np.uint8) for part in parts[first : first + 2]]
            step = _address(views[-1]) - _address(views[0]) if n_rows > 1 else views[0].size
            rows = as_strided(views[0], (n_rows, views[0].size), (step, 1))
        else:
            n_rows = _BATCH_ROWS
            some = parts[first : first + n_rows]
            rows = np.stack([np.frombuffer(part, dtype=np.uint8) for part in some])
        yield torch.from_numpy(rows)
        first += n_rows


def _n_in_step(parts: Sequence[Packed], first: int) -> int:
    """Return how many parts from `first` on lie at equal distances in one buffer.

    0: not even one can be a row where it lies, for torch takes nothing that is not to be written.
    """
    head = parts[first]
    if not isinstance(head, memoryview) or head.readonly:
        return 0
    owner, at, step = head.obj, _start(head), 0
    for n_rows, part in enumerate(parts[first + 1 :], start=1):
        if not isinstance(part, memoryview) or part.obj is not owner:
            return n_rows
        gap = _start(part) - at
        if gap <= 0 or step not in (0, gap):
            return n_rows
        at, step = at + gap, gap
    return len(parts) - first


def _start(part: memoryview) -> int:
    return _address(np.frombuffer(part, dtype=np.uint8))


def _address(view: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> int:
    return int(view.__array_interface__["data"][0])
