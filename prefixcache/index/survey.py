"""Who has which block of a pool, and which paths of its trees lie in short runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from prefixcache.index.blocks import BlockPool
from prefixcache.index.nodes import Anchor, Node
from prefixcache.index.spans import Runs, cut, join, n_blocks_in
from prefixcache.index.tree import children_of
from prefixcache.types import BlockId, Span

_FREE, _SHORT, _COLD, _FIXED = range(4)
_COSTS = {_FREE: 1, _SHORT: 2, _COLD: 4}  # of a place, in copies and in runs that are broken up
_NODES_A_LOOK = 64  # that are looked at in one piece

Chain = list[Node]  # each one the child of the one before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What it costs attention to read runs of blocks, and so which are worth being moved."""

    short_blocks: int  # a run of no more is copied before it is read, all of them for one call
    call_blocks: int  # a longer run takes a call of its own, which costs as if so many were copied
    most_exchanges: int  # that a block less to be copied is worth
    least_hits: int = 1  # that what is moved has had


class Survey:
    """A map of one pool, made node by node, in which blocks can be looked for room.

    Each block is marked:

        free    nobody has it, and few around it are free
        short   cached, in a run that is copied before it is read
        cold    cached, in a longer run of a prefix that is not likely to be read
        fixed   held, or in a longer run that is likely to be read, or that is free and long

    What is fixed gives way to nobody but the prefix that it belongs to. So no move makes another
    prefix dearer to read, and moving comes to an end.
    """

    def __init__(self, pool: BlockPool, group: int, reading: Reading) -> None:
        """Begin with a map on which all is fixed. `group`: which of a node's runs are in `pool`."""
        short_blocks = reading.short_blocks
        self.owners: list[Node | None] = [None] * pool.n_blocks  # of each cached block
        self.chains: list[Chain] = []  # what is likely to be read, the last used first
        self._marks = bytearray([_FIXED]) * pool.n_blocks
        self._group = group
        self._short = short_blocks
        self._reading = reading
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
            self.settle(chain)
            yield
        self.chains.sort(key=lambda chain: chain[-1].last_used, reverse=True)

    def runs(self, chain: Chain) -> Runs:
        """Return the blocks of a chain as they lie now."""
        return join(*[node.runs[self._group] for node in chain])

    def parts(self, chain: Chain) -> Iterator[slice]:
        """Yield which blocks of a chain may be better in one run: all, then those in short runs.

        It may be moved in between.
        """
        yield slice(0, n_blocks_in(self.runs(chain)))
        at = 0
        for is_short, spans in groupby(self.runs(chain), self._is_short):
            n_blocks = n_blocks_in(tuple(spans))
            if is_short and n_blocks > self._short:
                yield slice(at, at + n_blocks)
            at += n_blocks

    def place_for(self, chain: Chain, part: slice) -> Span | None:
        """Return where a part of a chain, or its first blocks, can lie in one run, if that pays.

        Of the places that take most of it, the one that costs least: at an end of a room, so that
        the rest stays together, or where most of it lies already. Cost: the rooms there are, each
        as long as the part, besides a look at each block of the pool.
        """
        runs = self.runs(chain)
        before, rest = cut(runs, part.start)
        wanted, after = cut(rest, part.stop - part.start)
        for span in wanted:
            self._mark(span, _SHORT)
        blocks = one_by_one(wanted)
        rooms = [found.span() for found in self._room.finditer(self._marks)]
        n_blocks = min(len(blocks), max((stop - start for start, stop in rooms), default=0))
        place = None
        if n_blocks > self._short:
            in_place = Counter(block - index for index, block in enumerate(blocks[:n_blocks]))
            large = [(start, stop) for start, stop in rooms if stop - start >= n_blocks]
            starts = {at for start, stop in large for at in (start, stop - n_blocks)}
            starts |= {
                start
                for start, n_there in in_place.items()
                if 2 * n_there > n_blocks and self._has_room(start, n_blocks)
            }
            best = min(starts, key=lambda start: (self._cost(start, n_blocks, in_place), start))
            place = Span(BlockId(best), n_blocks)
            moved = join(before, (place,), cut(wanted, n_blocks)[1], after)
            saved = self._cost_of(runs) - self._cost_of(moved)
            if n_blocks - in_place[best] > self._reading.most_exchanges * saved:
                place = None
        self.settle(chain)
        return place

    def settle(self, chain: Chain) -> None:
        """Have the long runs of a chain stay where they are now."""
        for span in self.runs(chain):
            self._mark(span, _SHORT if self._is_short(span) else _FIXED)

    def exchange(self, one: int, other: int, n_blocks: int) -> None:
        """Note that the blocks from `one` on and those from `other` on have changed places."""
        here, there = slice(one, one + n_blocks), slice(other, other + n_blocks)
        owners, marks = self.owners, self._marks
        owners[here], owners[there] = owners[there], owners[here]
        marks[here], marks[there] = marks[there], marks[here]

    def _enter(self, node: Node, chain: Chain | None, *, is_current: bool) -> Chain | None:
        """Note a node, and return the chain that goes on below it."""
        if node.pins:
            return None
        for span in node.runs[self._group]:
            self._mark(span, _SHORT if self._is_short(span) else _COLD)
            self.owners[span.first : span.first + span.n_blocks] = [node] * span.n_blocks
        is_likely = node.hits >= self._reading.least_hits
        is_likely |= chain is not None and _goes_on_alone(node)
        if not (is_current and is_likely):
            return None
        if chain is None:
            chain = []
            self.chains.append(chain)
        chain.append(node)
        return chain

    def _is_short(self, span: Span) -> bool:
        return span.n_blocks <= self._short

    def _cost_of(self, runs: Runs) -> int:
        """Return what one token's attention to some runs costs, in copied blocks.

        The call that reads all that is copied is there in any case, for a request's own blocks.
        """
        n_copied = sum(span.n_blocks for span in runs if self._is_short(span))
        n_calls = sum(not self._is_short(span) for span in runs)
        return n_copied + self._reading.call_blocks * n_calls

    def _mark(self, span: Span, mark: int) -> None:
        self._marks[span.first : span.first + span.n_blocks] = bytes([mark]) * span.n_blocks

    def _has_room(self, start: int, n_blocks: int) -> bool:
        is_within = 0 <= start <= len(self._marks) - n_blocks
        return is_within and self._marks.find(_FIXED, start, start + n_blocks) < 0

    def _cost(self, start: int, n_blocks: int, in_place: Counter[int]) -> int:
        stop = start + n_blocks
        costs = sum(self._marks.count(mark, start, stop) * cost for mark, cost in _COSTS.items())
        return costs - in_place[start] * _COSTS[_SHORT]


def one_by_one(runs: Runs) -> list[int]:
    """Return the blocks of `runs` in prompt order."""
    return [block for first, n_blocks in runs for block in range(first, first + n_blocks)]


def _goes_on_alone(node: Node) -> bool:
    """Return whether nothing else follows on what is above a node."""
    above = node.parent
    return above is not None and above.children is not None and above.children.n == 1


def _recency(node: Node) -> tuple[float, int]:
    return node.last_used, node.hits
