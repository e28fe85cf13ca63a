"""Weights in memory of our own, whatever becomes of the files that they were read from."""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain
from pathlib import Path

import torch
from torch import nn

Range = tuple[int, int]  # addresses: the first, and the one after the last


@torch.no_grad()
def own_weights(model: nn.Module, maps: Path = Path("/proc/self/maps")) -> int:
    """Copy what is mapped from files into memory; return how many bytes that was.

    A checkpoint in the number format that is wanted is not read but mapped: whoever overwrites the
    file in its place, to have it reloaded, would change the model that serves, or kill its process.

    Args:
        model: its parameters and buffers are changed in place.
        maps: where this process's mappings are listed; where there is no such file, all of
            the weights are copied.

    Cost: memory and time for a copy of what is mapped.
    """
    mapped, n_bytes = _mapped_files(maps), 0
    for tensor in chain(model.parameters(), model.buffers()):
        if tensor.device.type == "cpu" and _is_within(tensor.data_ptr(), mapped):
            tensor.data = tensor.data.clone()
            n_bytes += tensor.nbytes
    return n_bytes


def _mapped_files(maps: Path) -> list[Range]:
    """Return the addresses that files are mapped to, in order; everything where none is known."""
    try:
        lines = maps.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return [(0, 2**64)]
    ranges = [line.split(maxsplit=1)[0].split("-") for line in lines if "/" in line]
    return sorted((int(first, 16), int(end, 16)) for first, end in ranges)


def _is_within(address: int, ranges: list[Range]) -> bool:
    index = bisect_right(ranges, (address, 2**64)) - 1
    return index >= 0 and address < ranges[index][1]
