"""Bringing together what is cached in short runs, by exchanging the places of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prefixcache.index.blocks import BlockPool
from prefixcache.index.core import Core
from prefixcache.index.nodes import Node
from prefixcache.index.spans import exchanged, has_all
from prefixcache.index.survey import Reading, Survey, one_by_one
from prefixcache.types import BlockId, Span

_MOST_BLOCKS = 4  # that change places at once


@dataclass(frozen=True, slots=True)
class BlockExchange:
    """An order to exchange the KV of consecutive blocks with that of as many others.

    None of them is in both places.
    """

    group: int
    source: BlockId
    target: BlockId
    n_blocks: int
    is_copy: bool  # nothing is in the target: a copy will do


class Compaction:
    """Moves prefixes that requests come back to, and that none holds, into long runs.

    A block that is in the way takes the place of the one that comes: nothing is given up and
    nothing becomes free, so that a full pool can be compacted as well. What a request holds stays
    where it is. Window groups are left alone: they keep a window of each prompt and no more.

    Design: prefixcache/design/0038-fragmentation.md.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.moved_blocks = 0  # whose KV has another place, those that were in the way included

    def rounds(
        self, exchange: Callable[[BlockExchange], None], *, group: int, reading: Reading
    ) -> Iterator[int]:
        """Compact a layer group in little pieces, and yield after each how many blocks it moved.

        Other calls may come in between, and it may be left at any piece: all is consistent after
        each. It ends when there is no more to do, or when something that it has seen has changed.

        Args:
            exchange: does so to the KV before it returns. If it raises, it has changed nothing.
            group: one without a window; in another one nothing is done.
            reading: what is worth being moved; what goes on alone from that is moved with it.

        Raises:
            HookError: a hook of the cache goes on with it.

        Cost: in all, the nodes on the device, the blocks of the pool for each stretch that is
        moved, and the copies.
        """
        is_window, index = self._core.places[group]
        if is_window:
            return
        survey = Survey(self._core.pools.pools[index], index, reading)
        for _ in survey.look(self._core.forest, self._core.forest.is_storable):
            yield 0
        for chain in survey.chains:
            for part in survey.parts(chain):
                place = survey.place_for(chain, part)
                if place is None:
                    continue
                blocks = one_by_one(survey.runs(chain))[part]
                for one, other, n_blocks in _exchanges(survey, blocks, place):
                    n_moved = self._exchange(survey, exchange, group, (one, other, n_blocks))
                    if not n_moved:
                        return
                    yield n_moved
                survey.settle(chain)
                yield 0

    def _exchange(
        self,
        survey: Survey,
        exchange: Callable[[BlockExchange], None],
        group: int,
        pair: tuple[int, int, int],
    ) -> int:
        """Let blocks change places; return how many moved, 0 where they are others' by now."""
        core, (one, other, n_blocks) = self._core, pair
        if core.hooks.is_running:
            core.hooks.refuse()
        index = core.places[group][1]
        pool = core.pools.pools[index]
        source, target = Span(BlockId(one), n_blocks), Span(BlockId(other), n_blocks)
        mover, occupant = survey.owners[one], survey.owners[other]
        is_copy = occupant is None
        is_there = pool.has_free(target) if occupant is None else _has(occupant, index, target)
        if mover is None or not (_has(mover, index, source) and is_there):
            return 0
        order = BlockExchange(group, source.first, target.first, n_blocks, is_copy)
        core.hooks.run(exchange, order)
        if is_copy:
            _trade(pool, target, source)
        for node in {mover, occupant}:
            if node is not None:
                runs = exchanged(node.runs[index], source, target)
                node.runs = (*node.runs[:index], runs, *node.runs[index + 1 :])
        survey.exchange(one, other, n_blocks)
        n_moved = n_blocks if is_copy else 2 * n_blocks
        self.moved_blocks += n_moved
        return n_moved


def _exchanges(
    survey: Survey, blocks: Sequence[int], place: Span
) -> Iterator[tuple[int, int, int]]:
    """Yield what changes places, one after another, until `blocks` lie in `place` in order.

    Each is (source, target, number of blocks), and done before the next one is asked for.
    """
    places = list(blocks[: place.n_blocks])
    index_of = {block: index for index, block in enumerate(places)}
    at = 0
    while at < len(places):
        one, other = places[at], place.first + at
        if one == other:
            at += 1
            continue
        n_blocks = _n_alike(survey.owners, places, at, other)
        yield one, other, n_blocks
        for offset in range(n_blocks):
            pushed = index_of.pop(other + offset, None)
            if pushed is not None:
                places[pushed] = one + offset
                index_of[one + offset] = pushed
        at += n_blocks


def _n_alike(owners: Sequence[Node | None], places: Sequence[int], at: int, other: int) -> int:
    """Return how many blocks from `at` on can change places at once with those from `other` on."""
    one = places[at]
    most = min(_MOST_BLOCKS, abs(one - other), len(places) - at)
    n_alike = 1
    while (
        n_alike < most
        and places[at + n_alike] == one + n_alike
        and owners[one + n_alike] is owners[one]
        and owners[other + n_alike] is owners[other]
    ):
        n_alike += 1
    return n_alike


def _has(node: Node, index: int, span: Span) -> bool:
    """Return whether blocks are a node's that is in a tree and that nobody uses."""
    return node.parent is not None and not node.pins and has_all(node.runs[index], span)


def _trade(pool: BlockPool, taken: Span, given: Span) -> None:
    pool.take(taken)
    pool.free(given)
