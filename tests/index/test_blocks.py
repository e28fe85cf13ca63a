"""The block pool: extents, and what it refuses."""

from __future__ import annotations

import random

import pytest

from prefixcache.errors import BooksError, ConfigError
from prefixcache.index.blocks import BlockPool
from prefixcache.types import BlockId, Span


def span(first: int, n_blocks: int) -> Span:
    return Span(BlockId(first), n_blocks)


def pool_with_free(*extents: tuple[int, int], n_blocks: int = 20) -> BlockPool:
    """Return a pool in which exactly `extents` are free."""
    pool = BlockPool(n_blocks)
    pool.allocate(n_blocks)
    for extent in extents:
        pool.free(span(*extent))
    pool.check()
    return pool


def test_a_new_pool_is_one_free_run() -> None:
    """Everything is free and consecutive at the start."""
    pool = BlockPool(7)
    assert pool.n_free == 7
    assert pool.longest_free_run == 7
    assert pool.allocate(7) == (span(0, 7),)
    assert pool.longest_free_run == 0


def test_a_run_grows_in_place_where_it_can() -> None:
    """Blocks right after the caller's last come before any better fit."""
    pool = pool_with_free((3, 2), (10, 5))
    assert pool.allocate(2, after=(span(8, 2),)) == (span(10, 2),)


def test_growth_goes_on_after_the_last_of_several_runs() -> None:
    """Wherever the runs before it ended."""
    pool = pool_with_free((2, 3), (10, 5))
    assert pool.allocate(2, after=(span(0, 2), span(8, 2))) == (span(10, 2),)


def test_what_does_not_fit_in_place_goes_on_elsewhere() -> None:
    """Growth takes what follows, and the rest from an extent that holds it."""
    pool = pool_with_free((2, 9), (12, 2), (16, 3))
    assert pool.allocate(5, after=(span(11, 1),)) == (span(12, 2), span(16, 3))


def test_of_extents_that_hold_all_a_short_one_is_taken() -> None:
    """Those more than twice as long are kept for those who need them."""
    pool = pool_with_free((0, 6), (8, 3), (13, 4))
    assert pool.allocate(3, after=(span(6, 1),)) == (span(8, 3),)


def test_a_long_extent_is_cut_only_where_no_shorter_one_holds_all() -> None:
    """Also where the shorter one is twice as long as what is asked for."""
    pool = pool_with_free((0, 9), (10, 6), n_blocks=20)
    assert pool.allocate(3) == (span(10, 3),)


def test_where_nothing_holds_all_long_runs_are_taken() -> None:
    """As few runs as can be."""
    pool = pool_with_free((0, 2), (4, 5), (10, 1))
    assert pool.allocate(7) == (span(4, 5), span(0, 2))


def test_freed_neighbours_become_one_extent() -> None:
    """Extents grow together on both sides."""
    pool = pool_with_free((4, 2), (8, 2))
    pool.free(span(6, 2))
    pool.check()
    assert pool.free_spans() == [span(4, 6)]
    assert pool.longest_free_run == 6


@pytest.mark.parametrize("again", [(5, 1), (4, 2), (0, 20), (6, 3)])
def test_freeing_a_free_block_raises(again: tuple[int, int]) -> None:
    """A second free is found even where only one block of many was free."""
    pool = pool_with_free((5, 1), (8, 1))
    with pytest.raises(BooksError):
        pool.free(span(*again))


@pytest.mark.parametrize("again", [(19, 1), (15, 5), (16, 2), (14, 2)])
def test_freeing_what_is_free_at_the_end_raises(again: tuple[int, int]) -> None:
    """Blocks from some block to the pool's last are known as free as well as those between."""
    pool = pool_with_free((15, 5))
    with pytest.raises(BooksError):
        pool.free(span(*again))


def test_freeing_the_first_block_of_the_pool_twice_raises() -> None:
    """Its number is 0, which is a block like any other."""
    pool = pool_with_free((0, 1))
    with pytest.raises(BooksError):
        pool.free(span(0, 1))


@pytest.mark.parametrize("outside", [(-1, 1), (19, 2), (20, 1), (3, 0)])
def test_freeing_what_the_pool_does_not_have_raises(outside: tuple[int, int]) -> None:
    """Blocks beyond either end, and empty spans, are a bug of the caller."""
    with pytest.raises(BooksError):
        pool_with_free().free(span(*outside))


def test_an_empty_pool_cannot_be_made() -> None:
    """A pool has at least one block."""
    with pytest.raises(ConfigError):
        BlockPool(0)


def test_eight_growing_streams_keep_runs_of_a_portion() -> None:
    """Streams that grow side by side in portions do not interleave block by block."""
    pool = BlockPool(8 * 64)
    streams: list[list[Span]] = [[] for _ in range(8)]
    for _ in range(8):
        for blocks in streams:
            blocks.extend(pool.allocate(8, after=tuple(blocks)))
    assert all(taken.n_blocks == 8 for blocks in streams for taken in blocks)


def test_random_use_never_hands_a_block_out_twice() -> None:
    """Against a set of free blocks, whatever the order of calls."""
    rng = random.Random(5)
    pool, free, held = BlockPool(60), set(range(60)), list[Span]()
    for _ in range(1500):
        if held and rng.random() < 0.5:
            back = held.pop(rng.randrange(len(held)))
            pool.free(back)
            free.update(range(back.first, back.first + back.n_blocks))
        elif free:
            after = (held[-1],) if held else ()
            for taken in pool.allocate(rng.randint(1, min(9, len(free))), after=after):
                blocks = set(range(taken.first, taken.first + taken.n_blocks))
                assert blocks <= free
                free -= blocks
                held.append(taken)
        pool.check()
        assert pool.n_free == len(free)


def test_chosen_blocks_are_taken_wherever_they_lie() -> None:
    """Against a set of free blocks: inside an extent, at its ends and in the tail."""
    rng = random.Random(6)
    pool, free, held = BlockPool(60), set(range(60)), set[int]()
    for _ in range(1500):
        some = span(rng.randrange(56), rng.randint(1, 4))
        blocks = set(range(some.first, some.first + some.n_blocks))
        assert pool.has_free(some) == (blocks <= free)
        if blocks <= free:
            pool.take(some)
            free -= blocks
            held |= blocks
        elif held:
            block = rng.choice(sorted(held))
            pool.free(span(block, 1))
            free.add(block)
            held.remove(block)
        pool.check()
        assert {each for at, n in pool.free_spans() for each in range(at, at + n)} == free


def test_a_pool_takes_no_memory_for_its_size() -> None:
    """A pool of more blocks than there is memory gives, takes back and checks like any other."""
    pool = BlockPool(2**48)
    first = pool.allocate(10_000)[0]
    second = pool.allocate(3)[0]
    pool.free(first)
    pool.check()
    with pytest.raises(BooksError, match="second time"):
        pool.free(Span(BlockId(9999), 1))
    pool.free(second)
    pool.check()
    assert pool.n_free == pool.longest_free_run == 2**48
