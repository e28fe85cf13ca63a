"""Within its reserve a tenant's hits are the same, whatever the others do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixcache.errors import CacheError, PoolExhaustedError, RequestTooLargeError
from prefixcache.index import Lease, Namespace, PrefixCache, Published, Quota, Scope, pack

Ids = tuple[int, ...]
POOL = 17
BLOCK = 2
SHARED = [(0, 0, 0, 0, 0), (0, 0, 1), (0, 0, 0, 0, 0, 0, 1, 1)]  # within the system's reserve

BITS = st.lists(st.integers(0, 1), max_size=4).map(tuple)
IDS = st.builds(lambda n_zeros, rest: (0,) * n_zeros + rest, st.integers(1, 6), BITS)


@dataclass(frozen=True)
class Op:
    """One thing that a tenant does. `at` chooses among its running requests."""

    kind: str  # run, keep (retained), start, grow, end, retain, bump
    ids: Ids = (0,)
    at: int = 0


@dataclass(frozen=True)
class Shared:
    """Publish and read one of the prompts, or retire what was published of it."""

    prompt: int
    is_retired: bool


def ops(*kinds: str) -> st.SearchStrategy[Op]:
    return st.builds(Op, st.sampled_from(kinds), IDS, st.integers(0, 3))


OWN_OPS = ops("run", "run", "start", "start", "grow", "end", "end", "retain", "keep")
OWN = st.lists(st.one_of(OWN_OPS, OWN_OPS, st.builds(Shared, st.integers(0, 2), st.booleans())))
OTHERS = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(["u", "w"]),
            ops("run", "keep", "keep", "start", "grow", "end", "retain", "bump"),
        ),
        max_size=5,
    ),
    max_size=20,
)


class World:
    """A cache, its tenants' running requests and what is published."""

    def __init__(self, quota: Quota, *, growth_blocks: int, token_exact: bool) -> None:
        self.cache = PrefixCache(
            pool_blocks=[POOL],
            block_size_tokens=BLOCK,
            growth_blocks=growth_blocks,
            token_exact_reuse=token_exact,
            quotas={"t": quota},
            published_quota=Quota(reserved_blocks=7, max_blocks=7),
            retained_blocks=POOL,
            clock=lambda: 0.0,
        )
        self.running: dict[str, list[tuple[Lease, Ids]]] = {}
        self.published: dict[int, Published] = {}
        self.most_used = 0  # blocks that t had at any moment

    def play(
        self, own: Sequence[Op | Shared], others: Sequence[Sequence[tuple[str, Op]]]
    ) -> list[object]:
        """Play t's history, with the others' in between, and return what t saw at each step."""
        seen: list[object] = []
        for step, op in enumerate(own):
            for tenant, other in others[step] if step < len(others) else ():
                self.do(tenant, other)
                self.cache.check()
            if isinstance(op, Shared):
                self.share(op)
            else:
                seen.append(self.do("t", op))
            self.cache.check()
        return seen

    def share(self, op: Shared) -> None:
        published = self.published.pop(op.prompt, None)
        if published is not None and op.is_retired:
            self.cache.prompts.retire(published)
        elif published is None:
            ids = pack(SHARED[op.prompt])
            published = self.published[op.prompt] = self.cache.prompts.publish("p", ids)
            try:
                lease = self.cache.prompts.acquire(published)
            except CacheError:
                return
            self.cache.commit(lease, ids)
            self.cache.release(lease)
        else:
            self.published[op.prompt] = published

    def do(self, tenant: str, op: Op) -> object:
        """Return the cached tokens of a request, or how else an operation ended."""
        running = self.running.setdefault(tenant, [])
        if op.kind == "bump":
            self.cache.invalidate(Scope.tenant(tenant))
            return None
        if op.kind in ("run", "keep", "start"):
            return self.start(tenant, op)
        if not running:
            return None
        lease, ids = running.pop(op.at % len(running))
        if op.kind == "end":
            self.cache.release(lease)
            return None
        running.append((lease, ids))
        if op.kind == "retain":
            return self.cache.retain(lease, len(op.ids), seconds=10)
        return self.grow(running, op.ids)

    def start(self, tenant: str, op: Op) -> object:
        try:
            lease = self.cache.acquire(Namespace(tenant=tenant), pack(op.ids))
        except (PoolExhaustedError, RequestTooLargeError) as error:
            return type(error)
        self.note_use()
        self.cache.commit(lease, pack(op.ids))
        if op.kind == "keep":
            self.cache.retain(lease, len(op.ids), seconds=10)
        if op.kind == "start":
            self.running[tenant].append((lease, op.ids))
        else:
            self.cache.release(lease)
        return lease.cached_tokens

    def grow(self, running: list[tuple[Lease, Ids]], more: Ids) -> object:
        lease, ids = running.pop()
        try:
            self.cache.extend(lease, len(ids + more))
        except (PoolExhaustedError, RequestTooLargeError) as error:
            running.append((lease, ids))
            return type(error)
        self.note_use()
        self.cache.commit(lease, pack(ids + more))
        running.append((lease, ids + more))
        return len(ids + more)

    def note_use(self) -> None:
        stats = self.cache.tenant_stats("t")
        self.most_used = max(self.most_used, stats.cached_blocks + stats.held_blocks)


@pytest.mark.parametrize("token_exact", [False, True])
@pytest.mark.parametrize("growth_blocks", [0, 2])
@settings(max_examples=100, deadline=None)
@given(own=OWN, others=OTHERS)
def test_with_all_of_its_room_reserved_a_tenant_is_alone(
    growth_blocks: int,
    token_exact: bool,
    own: list[Op | Shared],
    others: list[list[tuple[str, Op]]],
) -> None:
    """Its hits and refusals are those of an empty machine, though it wants more than its quota."""
    quota = Quota(reserved_blocks=5, max_blocks=5)
    alone, crowded = (
        World(quota, growth_blocks=growth_blocks, token_exact=token_exact) for _ in range(2)
    )
    assert crowded.play(own, others) == alone.play(own, [])


@pytest.mark.parametrize("token_exact", [False, True])
@pytest.mark.parametrize("growth_blocks", [0, 2])
@settings(max_examples=100, deadline=None)
@given(own=OWN, others=OTHERS)
def test_what_stays_within_a_reserve_is_never_touched(
    growth_blocks: int,
    token_exact: bool,
    own: list[Op | Shared],
    others: list[list[tuple[str, Op]]],
) -> None:
    """Though its tenant may have more: nothing is refused and every hit is as if it were alone."""
    quota = Quota(reserved_blocks=7)
    alone, crowded = (
        World(quota, growth_blocks=growth_blocks, token_exact=token_exact) for _ in range(2)
    )
    seen: list[object] = []
    fitting: list[Op | Shared] = []
    for op in own:
        step = alone.play([op], [])
        if alone.most_used > 7 or PoolExhaustedError in step:
            break  # it wanted more than its reserve
        fitting.append(op)
        seen.extend(step)
    assert crowded.play(fitting, others) == seen
