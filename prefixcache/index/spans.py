"""Runs: the blocks of consecutive positions as a few spans, in prompt order.

A `Runs` value is never changed; each function returns a new one. Neighbouring spans that
continue each other are one span.
"""

from __future__ import annotations

from itertools import pairwise

from prefixcache.types import BlockId, Span

Runs = tuple[Span, ...]
GroupRuns = tuple[Runs, ...]  # one per layer group, each for the same positions


def n_blocks_in(runs: Runs) -> int:
    """Return how many blocks `runs` holds. Cost: its spans."""
    return sum(span.n_blocks for span in runs)


def join(*parts: Runs) -> Runs:
    """Return the parts one after the other, spans that continue each other merged."""
    parts = tuple([part for part in parts if part])
    if len(parts) == 1 and len(parts[0]) == 1:
        return parts[0]
    whole: list[Span] = []
    for part in parts:
        for span in part:
            if whole and whole[-1].first + whole[-1].n_blocks == span.first:
                whole[-1] = Span(whole[-1].first, whole[-1].n_blocks + span.n_blocks)
            else:
                whole.append(span)
    return tuple(whole)


def cut(runs: Runs, n_blocks: int) -> tuple[Runs, Runs]:
    """Return the first `n_blocks` blocks and the rest. Cost: the spans of `runs`."""
    left = n_blocks
    for i, (first, length) in enumerate(runs):
        if left < length:
            if not left:
                return runs[:i], runs[i:]
            head, tail = Span(first, left), Span(BlockId(first + left), length - left)
            return (*runs[:i], head), (tail, *runs[i + 1 :])
        left -= length
    return runs, ()


def has_all(runs: Runs, span: Span) -> bool:
    """Return whether all blocks of `span` are among `runs`, in any order. Cost: the spans."""
    begin, end = span.first, span.first + span.n_blocks
    shared = (min(end, first + length) - max(begin, first) for first, length in runs)
    return sum(n_shared for n_shared in shared if n_shared > 0) == span.n_blocks


def exchanged(runs: Runs, one: Span, other: Span) -> Runs:
    """Return `runs` with the blocks of `one` and of `other`, as many, in each other's places.

    Either may be among them or not; they share no block. Cost: the spans of `runs`.
    """
    distance = other.first - one.first
    bounds = sorted({at for first, n in (one, other) for at in (first, first + n)})
    pieces: list[Runs] = []
    for first, length in runs:
        until = first + length
        inner = [at for at in bounds if first < at < until]
        for at, end in pairwise([first, *inner, until]):
            moved = distance * (_is_in(at, one) - _is_in(at, other))
            pieces.append((Span(BlockId(at + moved), end - at),))
    return join(*pieces)


def join_groups(*parts: GroupRuns) -> GroupRuns:
    """Return `join` of the parts in each layer group."""
    return tuple([join(*runs) for runs in zip(*parts, strict=True)])


def cut_groups(groups: GroupRuns, n_blocks: int) -> tuple[GroupRuns, GroupRuns]:
    """Return `cut` in each layer group: the first `n_blocks` positions, and the rest."""
    halves = [cut(runs, n_blocks) for runs in groups]
    return tuple([head for head, _ in halves]), tuple([tail for _, tail in halves])


def _is_in(block: int, span: Span) -> bool:
    return span.first <= block < span.first + span.n_blocks
