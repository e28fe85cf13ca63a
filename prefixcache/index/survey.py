"""Who has which block of a pool, and which paths of its trees lie in short runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from prefixcache.index.blocks import BlockPool
from prefixcache.index.nodes import Anchor, Node
from prefixcache.index.spans import Runs, join, n_blocks_in
from prefixcache.index.tree import children_of
from prefixcache.types import BlockId, Span

_FREE, _SHORT, _COLD, _FIXED = range(4)
_COSTS = {_FREE: 1, _SHORT: 2, _COLD: 4}  # of a place, in copies and in runs that are broken up
_NODES_A_LOOK = 64  # that are looked at in one piece

Chain = list[Node]  # each one the child of the one before it


class Survey:
    """A map of one pool, made node by node, in which blocks can be looked for room.

    Each block is marked:

        free    nobody has it, and few around it are free
        short   cached, in a run that is copied before it is read
        cold    cached, in a longer run that nobody has come back to
        fixed   held, or in a longer run that is read again, or that is free and long

    What is fixed stays where it is. So no move shortens a run that is worth something, and moving
    comes to an end.
    """

    def __init__(self, pool: BlockPool, group: int, short_blocks: int) -> None:
        """Begin with a map on which all is fixed.

        `group`: which of a node's runs are in `pool`; `short_blocks`: a longer run is no short one.
        """
        self.owners: list[Node | None] = [None] * pool.n_blocks  # of each cached block
        self.chains: list[Chain] = []  # what is read again, the last used first
        self._marks = bytearray([_FIXED]) * pool.n_blocks
        self._group = group
        self._short = short_blocks
        self._room = re.compile(b"[^\\x%02x]{%d,}" % (_FIXED, short_blocks + 1), re.DOTALL)
        for span in pool.free_spans():
            if span.n_blocks <= short_blocks:
                self._mark(span, _FREE)

    def look(
        self, anchors: Iterable[Anchor], is_storable: Callable[[Anchor], bool]
    ) -> Iterator[None]:
        """Enter all that is below `anchors`; pause after every few nodes.

        A path is cut into chains: each node goes on with the child that was used last.
        """
        n_seen = 0
        for anchor in anchors:
            is_current = is_storable(anchor)
            stack: list[tuple[Node, Chain | None]] = [(each, None) for each in children_of(anchor)]
            while stack:
                node, chain = stack.pop()
                if not node.runs[0]:
                    continue  # nothing below is on the device either
                chain = self._enter(node, chain, is_current=is_current)
                children = children_of(node)
                latest = max(children, key=_recency, default=None)
                stack += [(each, chain if each is latest else None) for each in children]
                n_seen += 1
                if n_seen % _NODES_A_LOOK == 0:
                    yield
        for chain in self.chains:
            for span in self.runs(chain):
                if not self._is_short(span):
                    self._mark(span, _FIXED)
            yield
        self.chains.sort(key=lambda chain: chain[-1].last_used, reverse=True)

    def runs(self, chain: Chain) -> Runs:
        """Return the blocks of a chain as they lie now."""
        return join(*[node.runs[self._group] for node in chain])

    def stretches(self, chain: Chain) -> list[slice]:
        """Return which blocks of a chain are in short runs and would be a long one."""
        found, at = [], 0
        for is_short, spans in groupby(self.runs(chain), self._is_short):
            n_blocks = n_blocks_in(tuple(spans))
            if is_short and n_blocks > self._short:
                found.append(slice(at, at + n_blocks))
            at += n_blocks
        return found

    def place_for(self, blocks: Sequence[int]) -> Span | None:
        """Return where the first of `blocks` can lie in one run; None: nowhere in a long one.

        Of the places that take most of them, the one that costs least. Cost: the rooms there are,
        each as long as `blocks`, besides a look at each block of the pool.
        """
        rooms = [found.span() for found in self._room.finditer(self._marks)]
        if not rooms:
            return None
        n_blocks = min(len(blocks), max(stop - start for start, stop in rooms))
        in_place = Counter(block - index for index, block in enumerate(blocks[:n_blocks]))
        starts = {start for start, stop in rooms if stop - start >= n_blocks}
        starts |= {start for start in in_place if self._has_room(start, n_blocks)}
        best = min(starts, key=lambda start: (self._cost(start, n_blocks, in_place), start))
        return Span(BlockId(best), n_blocks)

    def exchange(self, one: int, other: int, n_blocks: int) -> None:
        """Note that the blocks from `one` on and those from `other` on have changed places."""
        here, there = slice(one, one + n_blocks), slice(other, other + n_blocks)
        owners, marks = self.owners, self._marks
        owners[here], owners[there] = owners[there], owners[here]
        marks[here], marks[there] = marks[there], marks[here]

    def fix(self, span: Span) -> None:
        """Have blocks stay where they are."""
        self._mark(span, _FIXED)

    def _enter(self, node: Node, chain: Chain | None, *, is_current: bool) -> Chain | None:
        """Note a node, and return the chain that goes on below it."""
        if node.pins:
            return None
        for span in node.runs[self._group]:
            self._mark(span, _SHORT if self._is_short(span) else _COLD)
            self.owners[span.first : span.first + span.n_blocks] = [node] * span.n_blocks
        if not (is_current and _is_read_again(node)):
            return None
        if chain is None:
            chain = []
            self.chains.append(chain)
        chain.append(node)
        return chain

    def _is_short(self, span: Span) -> bool:
        return span.n_blocks <= self._short

    def _mark(self, span: Span, mark: int) -> None:
        self._marks[span.first : span.first + span.n_blocks] = bytes([mark]) * span.n_blocks

    def _has_room(self, start: int, n_blocks: int) -> bool:
        is_within = 0 <= start <= len(self._marks) - n_blocks
        return is_within and self._marks.find(_FIXED, start, start + n_blocks) < 0

    def _cost(self, start: int, n_blocks: int, in_place: Counter[int]) -> int:
        stop = start + n_blocks
        costs = sum(self._marks.count(mark, start, stop) * cost for mark, cost in _COSTS.items())
        return costs - in_place[start] * _COSTS[_SHORT]


def _is_read_again(node: Node) -> bool:
    """Return whether requests have come back to a node, or to what goes on with it alone."""
    above = node.parent
    if node.hits or above is None or above.children is None:
        return node.hits > 0
    return above.n_blocks > 0 and above.hits > 0 and above.children.n == 1


def _recency(node: Node) -> tuple[float, int]:
    return node.last_used, node.hits
