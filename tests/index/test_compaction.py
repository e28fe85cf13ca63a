"""Bringing together what lies in short runs: what moves, what stays, and that nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from prefixcache.errors import HookError
from prefixcache.index import BlockEvent, BlockExchange, Lease, PrefixCache, Reading, Scope, pack
from prefixcache.index.spans import Runs
from prefixcache.index.tree import nodes, runs_to
from prefixcache.types import PoolCounts
from tests.index.fake_kv import FakeKV
from tests.index.small import NS

SHORT = 2  # blocks of a run that is worth being made longer
ONE = [1] * 16
OTHER = [2] * 16


def reading(least_hits: int = 1) -> Reading:
    """A call costs little, so that small prompts are worth being moved."""
    return Reading(short_blocks=SHORT, call_blocks=2, most_exchanges=4, least_hits=least_hits)


class World:
    """A cache of blocks of two tokens, and what is in them."""

    def __init__(self, n_blocks: int, *, window_blocks: int = 0) -> None:
        windows = [4] if window_blocks else []
        self.kv = FakeKV(2, 1, windows)
        self.cache = PrefixCache(
            pool_blocks=[n_blocks, *([window_blocks] if window_blocks else [])],
            windows=[None, *windows],
            block_size_tokens=2,
            growth_blocks=0,
            token_exact_reuse=False,
        )
        self.orders: list[BlockExchange] = []

    def exchange(self, order: BlockExchange) -> None:
        self.orders.append(order)
        self.kv.exchange(order)

    def start(self, ids: Sequence[int]) -> Lease:
        lease = self.cache.acquire(NS, pack(ids))
        self.kv.assert_holds(lease, ids[: lease.cached_tokens])
        self.kv.write(lease, ids, lease.cached_tokens)
        self.cache.commit(lease, pack(ids))
        return lease

    def run(self, ids: Sequence[int]) -> int:
        """Run a request to its end, and return how much it has found: the right thing."""
        lease = self.start(ids)
        self.cache.release(lease)
        return lease.cached_tokens

    def grow(self, lease: Lease, ids: Sequence[int]) -> None:
        """Have a request go on by a block."""
        self.cache.extend(lease, len(ids))
        self.kv.write(lease, ids, len(ids) - 2)
        self.cache.commit(lease, pack(ids))

    def interleave(self, *prompts: Sequence[int]) -> None:
        """Have requests grow side by side, block by block, and then come back once."""
        leases = [self.start(ids[:2]) for ids in prompts]
        for length in range(4, max(map(len, prompts)) + 1, 2):
            for lease, ids in zip(leases, prompts, strict=True):
                if length <= len(ids):
                    self.grow(lease, ids[:length])
        for lease in leases:
            self.cache.release(lease)
        for ids in prompts:
            self.run(ids)

    def rounds(self, least_hits: int = 1) -> Iterator[int]:
        return self.cache.compaction.rounds(self.exchange, group=0, reading=reading(least_hits))

    def compact(self, least_hits: int = 1) -> int:
        n_moved = sum(self.rounds(least_hits))
        self.cache.check()
        return n_moved

    def paths(self) -> list[Runs]:
        """Where each prompt lies that is cached."""
        leaves = (
            node
            for anchor in self.cache._core.forest
            for node in nodes(anchor)
            if node.n_blocks and node.children is None
        )
        return sorted(runs_to(leaf)[0] for leaf in leaves)


def n_runs(world: World) -> list[int]:
    return [len(runs) for runs in world.paths()]


def test_interleaved_prompts_become_one_run_each_in_a_full_pool() -> None:
    """With no block free, all is still there, each prompt in one run; and then nothing moves."""
    world = World(17)
    world.interleave(ONE, OTHER)
    world.run([3, 3])
    assert world.cache.counts() == PoolCounts(free=0, cached=17, held=0)
    assert n_runs(world) == [8, 8, 1]
    assert world.compact() == world.cache.compaction.moved_blocks > 0
    assert n_runs(world) == [1, 1, 1]
    assert world.cache.counts() == PoolCounts(free=0, cached=17, held=0)
    assert world.cache.stats().evicted_blocks == 0
    assert world.compact() == 0
    assert (world.run(ONE), world.run(OTHER)) == (14, 14)


def test_where_a_block_is_free_one_copy_is_enough() -> None:
    """What is free changes places with what is moved, so there is as much of it as before."""
    world = World(18)
    world.interleave(ONE, [3, 3], OTHER)
    world.cache.evict(1)
    before = world.cache.counts()
    assert before.free == 2
    world.compact()
    assert n_runs(world)[:2] == [1, 1]
    assert world.cache.counts() == before
    copies = [order for order in world.orders if order.is_copy]
    moved = sum(order.n_blocks for order in world.orders)
    assert copies
    assert world.cache.compaction.moved_blocks == 2 * moved - sum(o.n_blocks for o in copies)


def test_what_a_request_holds_stays_where_it_is() -> None:
    """Its table is read by a step that was planned, and others are moved around it."""
    world = World(20)
    world.interleave(ONE, OTHER)
    held = world.start(ONE)
    spans = held.spans()
    world.compact()
    assert held.spans() == spans
    assert len(spans) > 1
    world.kv.assert_holds(held, ONE)
    assert world.run(OTHER) == 14


def test_what_nobody_has_come_back_to_is_not_moved() -> None:
    """Unless one says so: whether it is ever read again is not known."""
    world = World(16)
    world.interleave(ONE, OTHER)
    once = World(16)
    leases = [once.start(ids[:2]) for ids in (ONE, OTHER)]
    for length in range(4, 17, 2):
        for lease, ids in zip(leases, (ONE, OTHER), strict=True):
            once.grow(lease, ids[:length])
    for lease in leases:
        once.cache.release(lease)
    assert (world.compact() > 0, once.compact()) == (True, 0)
    assert once.compact(least_hits=0) > 0
    assert sum(n_runs(once)) <= 3


def test_what_goes_on_from_what_is_read_again_is_moved_with_it() -> None:
    """The last turn of a conversation was never read, and is next."""
    world = World(16)
    world.interleave(ONE[:8], OTHER[:8])
    world.run(ONE[:12])
    assert max(n_runs(world)) > 4
    assert world.compact() > 0
    assert n_runs(world) == [1, 1]
    assert world.run(ONE[:14]) == 12


def test_what_was_invalidated_is_not_moved_for_its_own_sake() -> None:
    """Nobody will read it; it makes room for others."""
    world = World(16)
    world.interleave(ONE, OTHER)
    world.cache.invalidate(Scope.tenant("default"))
    assert world.compact() == 0


def test_a_run_that_is_long_enough_is_not_broken_up() -> None:
    """It is read in place as it is: only what lies in short runs makes room."""
    world = World(26)
    world.run([5] * 16)
    world.run([5] * 16)
    long = world.paths()
    world.interleave(ONE, OTHER)
    world.compact()
    assert long[0] in world.paths()
    assert n_runs(world) == [1, 1, 1]


def test_runs_that_are_long_already_become_one_where_that_pays() -> None:
    """Each long run is a call of its own: a prompt in two of them is moved as a whole."""
    world = World(20)
    held = world.start(OTHER[:2])
    first = world.start(ONE[:8])
    world.cache.release(held)
    world.run([7, 7, 7, 7])
    world.cache.release(first)
    world.run(ONE)
    world.run(ONE)
    (path,) = (runs for runs in world.paths() if sum(n for _, n in runs) == 8)
    assert [span.n_blocks for span in path] == [4, 4]
    assert world.compact() > 0
    assert [8] in [[span.n_blocks for span in runs] for runs in world.paths()]
    assert world.run(ONE) == 14


def test_what_would_take_more_copies_than_it_saves_stays() -> None:
    """A short end of a long prompt is copied at each read, and moving all of it never pays."""
    world = World(200)
    long = [5] * 160
    world.run(long)
    held = world.start([6, 6])
    world.run([9] * 180)
    world.run([*long, 4, 4])
    world.run([*long, 4, 4, 4])
    assert len(world.paths()[0]) == 2
    blocked = world.paths()
    assert world.compact() == 0
    assert world.paths() == blocked
    world.cache.release(held)
    assert world.compact() == 2


def test_a_long_free_run_is_left_for_the_next_prompt() -> None:
    """Else what is moved would be in one run, and what comes in many."""
    world = World(40)
    world.interleave(ONE, OTHER)
    assert world.cache.longest_free_run() == 24
    assert world.compact() > 0
    assert world.cache.longest_free_run() == 24


@pytest.mark.parametrize("n_pieces", range(1, 16))
def test_it_may_be_left_after_any_piece(n_pieces: int) -> None:
    """The books balance after each, and each prompt is found as it was written."""
    world = World(17)
    world.interleave(ONE, OTHER)
    rounds = world.rounds()
    for _ in range(n_pieces):
        next(rounds, None)
        world.cache.check()
    assert (world.run(ONE), world.run(OTHER)) == (14, 14)
    world.cache.check()


def test_it_ends_when_what_it_has_seen_is_in_use() -> None:
    """A request that has come meanwhile is safe; what is left is done another time."""
    world = World(20)
    world.interleave(ONE, OTHER)
    rounds = world.rounds()
    while not next(rounds):
        pass
    held = [world.start(ids) for ids in (ONE, OTHER)]
    spans = [lease.spans() for lease in held]
    assert list(rounds) == []
    assert [lease.spans() for lease in held] == spans
    for lease in held:
        world.cache.release(lease)
    assert world.compact() > 0
    assert (world.run(ONE), world.run(OTHER)) == (14, 14)


def test_it_ends_when_what_it_has_seen_is_gone() -> None:
    """A block that was given up and written again is not taken for what it was."""
    world = World(16)
    world.interleave(ONE, OTHER)
    rounds = world.rounds()
    while not next(rounds):
        pass
    world.cache.evict(16)
    world.run([7] * 32)
    assert list(rounds) == []
    world.cache.check()
    assert world.run([7] * 32) == 30


def test_what_was_free_may_have_been_taken_since() -> None:
    """A block is not written over because it was free when the pool was looked at."""
    world, same = World(18), World(18)
    for each in (world, same):
        each.interleave(ONE, [3, 3], OTHER)
        each.cache.evict(1)
    n_looks = next(index for index, moved in enumerate(list(same.rounds())) if moved)
    assert any(order.is_copy for order in same.orders)
    rounds = world.rounds()
    assert [next(rounds) for _ in range(n_looks)] == [0] * n_looks
    held = world.start([8] * 4)
    list(rounds)
    world.cache.check()
    world.kv.assert_holds(held, [8] * 4)


def test_a_cold_run_is_broken_up_last() -> None:
    """A long run that nobody came back to stays whole while there is other room."""
    world = World(12)
    one = world.start(ONE[:2])
    world.run([6] * 6)
    cold = world.paths()[1]
    between = world.cache.acquire(NS, pack([7]))
    for length in range(2, 8, 2):
        world.grow(one, ONE[: length + 2])
        world.run([8, 8, 8, 8, 8, 8][:length])
    world.cache.release(between)
    world.grow(one, ONE[:10])
    world.cache.release(one)
    assert world.run(ONE[:10]) == 8
    assert [span.first for span in world.paths()[0]] == [0, 5, 7, 9, 4]
    assert world.compact() > 0
    assert n_runs(world)[:1] != [5]
    assert cold in world.paths()


def test_a_copy_that_fails_changes_nothing() -> None:
    """The error goes to whoever compacts, and all is where it was."""
    world = World(16)
    world.interleave(ONE, OTHER)
    before = world.paths()

    def fail(order: BlockExchange) -> None:
        raise RuntimeError(order)

    with pytest.raises(RuntimeError):
        list(world.cache.compaction.rounds(fail, group=0, reading=reading()))
    world.cache.check()
    assert world.paths() == before
    assert world.run(ONE) == 14


def test_a_hook_cannot_go_on_with_it() -> None:
    """The books do not balance in the middle of a call."""
    world = World(20)
    world.interleave(ONE, OTHER)
    rounds = world.rounds()
    while not next(rounds):
        pass
    caught: list[HookError] = []

    class Watcher:
        def stored(self, event: BlockEvent) -> None:
            with pytest.raises(HookError) as error:
                next(rounds)
            caught.append(error.value)

        def removed(self, event: BlockEvent) -> None: ...

        def cleared(self, scope: object) -> None: ...

    world.cache.subscribe(Watcher())
    world.run([9] * 4)
    assert len(caught) == 1


def test_window_groups_are_left_alone() -> None:
    """Nothing is moved there; the other groups are compacted beside them."""
    world = World(16, window_blocks=16)
    leases = [world.cache.acquire(NS, pack(ids[:2])) for ids in (ONE, OTHER)]
    for length in range(2, 17, 2):
        for lease, ids in zip(leases, (ONE, OTHER), strict=True):
            world.cache.extend(lease, length)
            world.cache.slide(lease, length - 2, length)
            world.kv.write(lease, ids[:length], length - 2)
            world.cache.commit(lease, pack(ids[:length]))
    for lease in leases:
        world.cache.release(lease)
    for ids in (ONE, OTHER):
        lease = world.cache.acquire(NS, pack(ids))
        world.cache.release(lease)
    windows = [node.windows for a in world.cache._core.forest for node in nodes(a)]
    assert list(world.cache.compaction.rounds(world.exchange, group=1, reading=reading())) == []
    assert world.compact() > 0
    assert [node.windows for a in world.cache._core.forest for node in nodes(a)] == windows
    for ids in (ONE, OTHER):
        lease = world.cache.acquire(NS, pack(ids))
        world.kv.assert_holds(lease, ids[: lease.cached_tokens])
        assert lease.cached_tokens > 0
        world.cache.release(lease)


def test_a_prompt_longer_than_any_room_is_moved_as_far_as_that_goes() -> None:
    """Its first blocks lie in one run then: half is better than nothing."""
    world = World(24)
    world.interleave(ONE, OTHER, [3, 3])
    held = world.start([*[3, 3], *[4] * 10])
    world.compact()
    assert sorted(n_runs(world))[:2] != [8, 8]
    assert world.run(ONE) == world.run(OTHER) == 14
    world.cache.release(held)
