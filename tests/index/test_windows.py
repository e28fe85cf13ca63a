"""Window groups: holes behind the window, and matches that see none of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from prefixcache.errors import ConfigError, LeaseError, PoolExhaustedError
from prefixcache.index import (
    Lease,
    Miss,
    MissReason,
    Namespace,
    PrefixCache,
    Published,
    Scope,
    pack,
    unpack,
)
from prefixcache.types import PoolCounts, Span
from tests.index.fake_kv import block_at, blocks_of
from tests.index.machines import run_machine
from tests.index.small import NS

BLOCK, WINDOW = 2, 5
FULL, SLIDING = 0, 1


def cache_of(window_blocks: int = 6, n_blocks: int = 12, lead: int = 0) -> PrefixCache:
    return PrefixCache(
        pool_blocks=[n_blocks, window_blocks],
        windows=[None, WINDOW],
        leads=[0, lead],
        block_size_tokens=BLOCK,
        growth_blocks=0,
    )


def run(cache: PrefixCache, *ids: int, chunk: int = 2) -> Lease:
    """Serve a prompt in chunks and let it go."""
    lease = hold(cache, *ids, chunk=chunk)
    cache.release(lease)
    cache.check()
    return lease


def hold(cache: PrefixCache, *ids: int, chunk: int = 2) -> Lease:
    lease = cache.acquire(NS, pack(ids))
    for start in range(lease.cached_tokens, len(ids), chunk):
        stop = min(start + chunk, len(ids))
        cache.slide(lease, start, stop)
        cache.commit(lease, pack(ids[:stop]))
        cache.check()
    return lease


def test_a_long_prompt_needs_no_more_than_its_window_and_a_chunk() -> None:
    """What it slides past is there for others as long as nobody needs the room."""
    cache = cache_of(window_blocks=4)
    lease = hold(cache, *range(20))
    assert cache.counts(FULL).held == 10
    assert cache.counts(SLIDING).held <= 4
    assert lease.first_block(FULL) == 0
    assert lease.first_block(SLIDING) == 7  # the last token, 19, sees from 15 on
    assert len(blocks_of(lease, SLIDING)) == 3


def test_each_group_lets_go_of_what_its_own_window_has_passed() -> None:
    """A narrow window beside a wide one needs no more room than it would alone."""
    cache = PrefixCache(
        pool_blocks=[20, 4, 20], windows=[None, WINDOW, 40], block_size_tokens=BLOCK
    )
    lease = hold(cache, *range(30))
    assert lease.first_block(1) == 12  # the last token, 29, sees from 25 on
    assert lease.first_block(2) == 0
    assert [cache.counts(group).held for group in range(3)] == [15, 3, 15]
    cache.release(lease)
    cache.check()


def test_a_match_ends_where_its_window_is_whole() -> None:
    """The full group has more, but the next token would look into a hole."""
    cache = cache_of(window_blocks=4, n_blocks=40)
    run(cache, *range(20))
    lease = cache.acquire(NS, pack([*range(8), 99, 98]))
    assert lease.cached_tokens == 0
    assert lease.miss == Miss(MissReason.EVICTED, 0)
    cache.release(lease)
    again = cache.acquire(NS, pack([*range(20), 20, 21]))
    assert again.cached_tokens == 20
    cache.check()


def test_what_is_computed_again_fills_the_hole() -> None:
    """The next request that leaves there finds its window."""
    cache = cache_of(window_blocks=8, n_blocks=40)
    run(cache, *range(20))
    run(cache, *range(8), 90, 91, chunk=10)
    lease = cache.acquire(NS, pack([*range(8), 70, 71]))
    assert lease.cached_tokens == 8


def test_what_one_request_slid_past_another_keeps() -> None:
    """An equal request that is further behind fills the hole, though the first one goes on."""
    cache = cache_of(window_blocks=12)
    ahead, behind = (cache.acquire(NS, pack(range(12))) for _ in range(2))
    for start in (0, 4, 8):
        cache.slide(ahead, start, start + 4)
    cache.commit(ahead, pack(range(12)))
    cache.slide(behind, 0, 6)
    cache.commit(behind, pack(range(6)))
    cache.check()
    assert behind.first_block(SLIDING) <= 1  # token 6 sees from 2 on
    cache.release(ahead)
    cache.check()
    assert behind.first_block(SLIDING) <= 1
    cache.release(behind)
    cache.check()


def test_a_window_that_starts_at_the_first_token_has_no_hole() -> None:
    """Short prefixes are matched to their end."""
    cache = cache_of()
    run(cache, 1, 2, 3, 4)
    assert cache.match_length(NS, pack([1, 2, 3, 4, 5])) == 4


def test_the_window_of_what_is_retained_goes_last() -> None:
    """Traffic that can do without it leaves it; when it has to go, no request is refused for it."""
    cache = cache_of(window_blocks=7, n_blocks=40)
    lease = hold(cache, *range(8))
    assert cache.retain(lease, 8, seconds=1e9) == 8
    cache.release(lease)
    run(cache, *range(50, 70))
    assert cache.match_length(NS, pack([*range(8), 9])) == 8
    run(cache, *range(20, 34), chunk=14)
    assert cache.match_length(NS, pack([*range(8), 9])) == 0


def test_a_published_prompt_with_a_hole_is_unread() -> None:
    """What its next token sees is computed again, and then it is found."""
    cache = cache_of(n_blocks=40)
    published = publish_in_chunks(cache, range(8))
    assert cache.prompts.is_read(published)
    hungry = cache.acquire(NS, pack(range(50, 62)))
    cache.slide(hungry, 0, 12)
    cache.release(hungry)
    assert cache.prompts.unread() == [published]
    assert cache.match_length(NS, pack([*range(8), 9])) == 0
    read_in_chunks(cache, published)
    assert cache.prompts.is_read(published)
    assert cache.match_length(NS, pack([*range(8), 9])) == 8


def publish_in_chunks(cache: PrefixCache, ids: range) -> Published:
    published = cache.prompts.publish("p", pack(ids))
    read_in_chunks(cache, published)
    return published


def read_in_chunks(cache: PrefixCache, published: Published) -> None:
    ids = unpack(published.tokens)
    lease = cache.prompts.acquire(published)
    for start in range(lease.cached_tokens, len(ids), 2):
        cache.slide(lease, start, min(start + 2, len(ids)))
        cache.commit(lease, pack(ids[: start + 2]))
        cache.check()
    cache.release(lease)
    cache.check()


def test_a_window_group_without_room_says_so() -> None:
    """Nothing more is held than before, and the request may be released."""
    cache = cache_of(window_blocks=2)
    lease = cache.acquire(NS, pack(range(12)))
    with pytest.raises(PoolExhaustedError):
        cache.slide(lease, 0, 12)
    cache.check()
    assert cache.counts(SLIDING) == PoolCounts(free=2, cached=0, held=0)
    cache.release(lease)
    cache.check()


def test_what_had_no_room_in_a_window_group_is_not_stored() -> None:
    """A commit beyond the last slide is refused: its blocks there are not these tokens'."""
    cache = cache_of()
    lease = cache.acquire(NS, pack(range(12)))
    cache.slide(lease, 0, 4)
    with pytest.raises(LeaseError, match="8 tokens, window groups had room for 4"):
        cache.commit(lease, pack(range(8)))
    assert cache.match_length(NS, pack(range(12))) == 0
    cache.commit(lease, pack(range(4)))
    assert cache.match_length(NS, pack(range(12))) == 4


def test_what_every_token_sees_is_held_to_the_end() -> None:
    """A request has its first blocks and its window; what lies between others may take."""
    cache = cache_of(window_blocks=7, n_blocks=40, lead=3)
    lease = hold(cache, *range(20))
    assert blocks_in(lease.lead_spans(SLIDING)) == 2
    assert lease.first_block(SLIDING) == 7
    assert cache.counts(SLIDING).held == 2 + 3
    other = hold(cache, *range(50, 54))
    assert blocks_in(lease.lead_spans(SLIDING)) == 2
    cache.release(other)
    cache.release(lease)
    cache.check()
    assert cache.counts(SLIDING).held == 0


def test_a_request_that_stores_nothing_keeps_its_first_blocks() -> None:
    """They are its own to the end, though its window has passed them."""
    cache = cache_of(window_blocks=6, n_blocks=40, lead=3)
    lease = cache.acquire(NS, pack(range(20)), store=False)
    for start in range(0, 20, 2):
        cache.slide(lease, start, start + 2)
        cache.check()
    assert blocks_in(lease.lead_spans(SLIDING)) == 2
    assert cache.counts(SLIDING).held == 2 + 3
    cache.release(lease)
    cache.check()
    assert cache.counts(SLIDING).free == 6


def test_a_prefix_is_found_where_its_first_blocks_and_its_last_window_are() -> None:
    """Between them, where blocks are gone, a prompt that leaves finds its first blocks alone."""
    cache = cache_of(window_blocks=6, n_blocks=40, lead=3)
    run(cache, *range(20))
    assert cache.match_length(NS, pack([*range(20), 1])) == 20
    assert cache.match_length(NS, pack([*range(12), 99, 98])) == 4
    lease = cache.acquire(NS, pack([*range(20), 20, 21]))
    assert lease.cached_tokens == 20
    assert blocks_in(lease.lead_spans(SLIDING)) == 2


def test_without_its_first_blocks_nothing_is_found() -> None:
    """A window alone is of no use."""
    cache = cache_of(window_blocks=6, n_blocks=40, lead=10)
    run(cache, *range(10), chunk=10)
    assert cache.match_length(NS, pack([*range(10), 9])) == 10
    run(cache, *range(50, 54))  # takes the first block of all; the window of token 10 stays
    assert cache.counts(SLIDING).cached == 6
    assert cache.match_length(NS, pack([*range(10), 9])) == 0


def test_nodes_end_where_the_first_tokens_do() -> None:
    """A prompt that is stored in one has a node for these and one for the rest."""
    cache = cache_of(window_blocks=12, lead=3)
    lease = hold(cache, *range(12), chunk=12)
    assert (lease.node.n_blocks, lease.node.end_block) == (4, 6)
    assert lease.node.parent is not None
    assert lease.node.parent.n_blocks == 2


def blocks_in(spans: tuple[Span, ...]) -> int:
    return sum(span.n_blocks for span in spans)


@pytest.mark.parametrize(
    ("windows", "leads", "reason"),
    [
        ([None, 4], [0], "each of the 2 layer groups"),
        ([None, 4], [0, -1], "0 or more"),
        ([None, 4], [2, 2], "0 where there is no window"),
    ],
)
def test_leads_that_cannot_be_are_refused(
    windows: list[int | None], leads: list[int], reason: str
) -> None:
    """A group has an entry, and only one with a window has anything to keep."""
    with pytest.raises(ConfigError, match=reason):
        PrefixCache(pool_blocks=[8, 8], windows=windows, leads=leads)


@pytest.mark.parametrize(
    ("windows", "reason"),
    [
        ([None, 0], "at least one token"),
        ([4, 4], "one layer group must have no window"),
        ([None], "each of the 2 layer groups"),
    ],
)
def test_windows_that_cannot_be_are_refused(windows: list[int | None], reason: str) -> None:
    """A window has a token, one group keeps everything, and each group has an entry."""
    with pytest.raises(ConfigError, match=reason):
        PrefixCache(pool_blocks=[8, 8], windows=windows)


@dataclass(eq=False)
class Running:
    """A request of which the first `n_done` tokens are computed."""

    lease: Lease
    ids: tuple[int, ...]
    n_done: int


class WindowMachine(RuleBasedStateMachine):
    """Whatever the order of calls, the next token finds all that it sees, of the right prefix."""

    pools = (14, 7)
    lead = 0

    def __init__(self) -> None:
        super().__init__()
        self.cache = cache_of(self.pools[1], self.pools[0], self.lead)
        self.kv: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self.live: list[Running] = []
        self.n_made = 0

    @rule(n_same=st.integers(1, 12), rest=st.lists(st.integers(1, 2), max_size=4), x=st.booleans())
    def start(self, n_same: int, rest: list[int], x: bool) -> None:
        ids = (*[0] * n_same, *rest)
        namespace = Namespace(salt="x") if x else NS
        promised = self.cache.match_length(namespace, pack(ids))
        try:
            lease = self.cache.acquire(namespace, pack(ids))
        except PoolExhaustedError:
            return
        assert lease.cached_tokens == promised
        request = Running(lease, ids, lease.cached_tokens)
        self.live.append(request)
        self.sees_what_it_must(request)

    @rule(data=st.data(), n=st.integers(1, 5))
    def compute(self, data: st.DataObject, n: int) -> None:
        unfinished = [r for r in self.live if r.n_done < len(r.ids)]
        if not unfinished:
            return
        request = data.draw(st.sampled_from(unfinished))
        last = min(request.n_done + n, len(request.ids))
        before = self.cache.counts(SLIDING)
        try:
            self.cache.slide(request.lease, request.n_done, last)
        except PoolExhaustedError:
            assert self.cache.counts(SLIDING).held <= before.held
            self.sees_what_it_must(request)
            return
        for position in range(request.n_done, last):
            self.sees_what_it_must(request, position)
            for group in (FULL, SLIDING):
                self.kv[group, self.block(request, group, position), position % BLOCK] = (
                    request.ids[: position + 1]
                )
        request.n_done = last
        self.cache.commit(request.lease, pack(request.ids[:last]))
        self.sees_what_it_must(request)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.live:
            request = data.draw(st.sampled_from(self.live))
            self.live.remove(request)
            self.cache.release(request.lease)

    @rule(n_blocks=st.integers(0, 6))
    def evict(self, n_blocks: int) -> None:
        self.cache.evict(n_blocks)

    @rule()
    def invalidate(self) -> None:
        self.cache.invalidate(Scope.namespace(Namespace(salt="x")))

    @invariant()
    def the_books_balance(self) -> None:
        self.cache.check()

    @invariant()
    def what_runs_sees_what_it_must(self) -> None:
        for request in self.live:
            self.sees_what_it_must(request)

    def sees_what_it_must(self, request: Running, position: int | None = None) -> None:
        """Check all that the token at `position` sees; the next one by default."""
        at = request.n_done if position is None else position
        first = max(at - WINDOW + 1, 0)
        visible = [seen for seen in range(at) if seen < self.lead or seen >= first]
        for group, positions in ((FULL, range(at)), (SLIDING, visible)):
            for seen in positions:
                place = (group, self.block(request, group, seen), seen % BLOCK)
                assert self.kv[place] == request.ids[: seen + 1]

    def block(self, request: Running, group: int, position: int) -> int:
        return block_at(request.lease, group, position // BLOCK)


class LeadMachine(WindowMachine):
    """The first tokens are found as well, however far a request has gone."""

    pools = (20, 9)
    lead = 3


class RoomyMachine(WindowMachine):
    """With room for everything, windows hide nothing: a match is as long as what was stored."""

    pools = (400, 400)

    def __init__(self) -> None:
        super().__init__()
        self.stored: set[tuple[str | None, tuple[int, ...]]] = set()

    @rule(n_blocks=st.integers(0, 6))
    def evict(self, n_blocks: int) -> None:
        pass

    @rule()
    def invalidate(self) -> None:
        pass

    @invariant()
    def everything_computed_is_found(self) -> None:
        for request in self.live:
            n_full = request.n_done // BLOCK * BLOCK
            namespace = request.lease.namespace
            self.stored.add((namespace.salt, request.ids[:n_full]))
        for salt, ids in self.stored:
            assert self.cache.match_length(Namespace(salt=salt), pack([*ids, 9])) == len(ids)


class RoomyLeadMachine(RoomyMachine):
    """So it is where the first tokens are a node of their own."""

    lead = 3


@pytest.mark.parametrize("machine", [WindowMachine, LeadMachine, RoomyMachine, RoomyLeadMachine])
def test_window_groups_equal_plain_structures(machine: type[WindowMachine]) -> None:
    """No order of calls shows a token a hole, or KV of another prefix."""
    run_machine(machine, 60)
