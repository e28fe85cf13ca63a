"""What-ifs: tenants, published prompts, a host tier and replicas, worked out by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefixcache.errors import ConfigError
from prefixcache.index.policies import LruPolicy
from prefixcache.traces import ReplayPlan, TraceRequest, WhatIf, simulate
from prefixcache.traces.capacity import Capacity
from prefixcache.traces.lanes import Lane
from prefixcache.traces.runs import make_runs
from prefixcache.traces.whatif import CacheOptions, Replicas, TraceCache
from prefixcache.traces.whatif.published import PrefixCounts, worth_publishing
from tests.traces.plain import Ids, prompts, trace

SYSTEM = (1, 2)


def by(tenant: str, *ids: int) -> TraceRequest:
    return TraceRequest(0.0, 4 * len(ids), 1, ids, 4, tenant=tenant)


def said_in(conversation: str, *ids: int) -> TraceRequest:
    return TraceRequest(0.0, 4 * len(ids), 1, ids, 4, conversation=conversation)


def cache(capacity_blocks: int | None = None, **options: object) -> TraceCache:
    return TraceCache(LruPolicy, capacity_blocks, CacheOptions(**options))  # type: ignore[arg-type]


def served(lane: Lane, *requests: TraceRequest) -> list[int]:
    return [lane.serve(request) for request in requests]


@given(prompts, st.integers(1, 9))
def test_without_options_it_is_the_simulators_cache(rows: list[Ids], capacity_blocks: int) -> None:
    """One index, one answer."""
    requests = trace(*rows)
    found = sum(served(cache(capacity_blocks), *requests))
    known = simulate(requests, policy=LruPolicy, capacity_blocks=capacity_blocks)
    assert found == known.hit_blocks


def test_isolated_tenants_hit_their_own() -> None:
    """What another has sent is no hit; shared, it is."""
    requests = [by("a", 1, 2), by("b", 1, 2), by("b", 1, 2)]
    assert served(cache(is_isolated=True), *requests) == [0, 0, 2]
    assert served(cache(is_isolated=False), *requests) == [0, 2, 2]


def test_published_prompts_are_hit_by_all() -> None:
    """They are there from the start; what comes after them stays the tenant's own."""
    requests = [by("a", 1, 2, 3), by("b", 1, 2, 3), by("b", 1, 2, 3)]
    lane = cache(100, is_isolated=True, published=[SYSTEM])
    assert served(lane, *requests) == [2, 2, 3]


def test_published_prompts_outlast_traffic() -> None:
    """A tenant's flood does not take them away."""
    lane = cache(6, is_isolated=True, published=[SYSTEM])
    flood = [by("a", *range(100 + 4 * n, 104 + 4 * n)) for n in range(20)]
    served(lane, *flood)
    assert lane.serve(by("b", 1, 2, 3)) == 2


def test_published_prompts_need_room() -> None:
    """All of them, and a block to spare."""
    with pytest.raises(ConfigError, match="have 2 blocks"):
        cache(2, published=[SYSTEM])


def test_prefixes_worth_publishing_are_those_of_several_tenants() -> None:
    """The longest that all who share it have; no two where one begins with the other."""
    requests = [
        *[by("a", 5, 6, 7)] * 9,  # one tenant's alone
        *[by(name, 1, 2, 10 + n) for n, name in enumerate("abca")],
        *[by(name, 1, 20 + n) for n, name in enumerate("ab")],
        *[by(name, 3, 4) for name in "ab"],
    ]
    assert worth_publishing(requests, 9) == [(1, 2), (3, 4)]
    assert worth_publishing(requests, 1) == [(1, 2)]


def test_shared_prefixes_are_listed_at_their_longest() -> None:
    """With what all but the first request need not compute."""
    counts = PrefixCounts()
    for request in trace((1, 2, 3), (1, 2, 4), (1, 5), (6,)):
        counts.add(request)
    first, second = counts.top(9)
    assert (first.hash_ids, first.requests, first.saved_tokens) == ((1,), 3, 8)
    assert (second.hash_ids, second.requests, second.saved_tokens) == ((1, 2), 2, 8)


def test_a_host_tier_gives_back_what_left_the_device() -> None:
    """(1 2) had to go for (3 4), and comes back from below; that counts apart."""
    lane = cache(2, tier_blocks={"host": 9})
    assert served(lane, *trace((1, 2), (3, 4), (1, 2), (3, 4))) == [0, 0, 2, 2]
    assert lane.extras() == {"host_capacity_blocks": 9, "host_hit_blocks": 4}


def test_a_host_tier_without_a_limit_gives_up_nothing() -> None:
    """All four come back, and its capacity is no number."""
    lane = cache(1, tier_blocks={"host": None})
    assert served(lane, *trace((1,), (2,), (3,), (4,), (1,), (2,), (3,), (4,)))[4:] == [1] * 4
    assert lane.extras() == {"host_capacity_blocks": None, "host_hit_blocks": 4}


def test_a_host_tier_gives_up_what_was_not_used_for_longest() -> None:
    """What came back keeps its copy below: 3 and 4 are there when 2 is asked for."""
    lane = cache(1, tier_blocks={"host": 2})
    requests = trace((1,), (2,), (3,), (4,), (3,), (2,), (1,), (2,))
    assert served(lane, *requests) == [0, 0, 0, 0, 1, 0, 0, 1]


def test_what_leaves_the_host_tier_goes_to_disk() -> None:
    """Host memory has the two that were used last; 1 and 3 have left it when they are asked for."""
    lane = cache(1, tier_blocks={"host": 2, "disk": 9})
    assert served(lane, *trace((1,), (2,), (3,), (4,), (1,), (1, 2), (3,))) == [0, 0, 0, 0, 1, 1, 1]
    assert lane.extras() == {
        "host_capacity_blocks": 2,
        "host_hit_blocks": 0,
        "disk_capacity_blocks": 9,
        "disk_hit_blocks": 2,
    }


@given(prompts, st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_a_disk_below_gives_what_one_tier_of_both_sizes_gives(
    rows: list[Ids], device: int, host: int, disk: int
) -> None:
    """Where pieces are single blocks; and each tier keeps within its size."""
    requests = trace(*[row[:1] for row in rows])
    both = cache(device, tier_blocks={"host": host, "disk": disk})
    one = cache(device, tier_blocks={"host": host + disk})
    for request in requests:
        assert both.serve(request) == one.serve(request)
        assert both._tiers is not None
        assert all(n <= most for n, most in zip(both._tiers.n_blocks(), (host, disk), strict=True))


@given(prompts, st.integers(1, 6), st.integers(1, 6))
def test_a_second_tier_never_costs_hits(rows: list[Ids], device: int, host: int) -> None:
    """And never gives more than one that keeps everything."""
    requests = trace(*rows)
    alone = served(cache(device), *requests)
    both = served(cache(device, tier_blocks={"host": host}), *requests)
    everything = served(cache(device, tier_blocks={"host": 1000}), *requests)
    assert all(a <= b <= c for a, b, c in zip(alone, both, everything, strict=True))


@given(prompts, st.integers(1, 6), st.integers(1, 6))
def test_a_host_tier_keeps_within_its_size(rows: list[Ids], device: int, host: int) -> None:
    """After every request."""
    lane = cache(device, tier_blocks={"host": host})
    for request in trace(*rows):
        lane.serve(request)
        assert lane._tiers is not None
        assert lane._tiers.n_blocks()[0] <= host


def replicas(n: int, routing: str) -> Replicas:
    return Replicas([cache(100) for _ in range(n)], routing, rng=random.Random(1))


def test_random_routing_spreads_and_repeats() -> None:
    """Equal seeds, equal routes; every replica gets some."""
    requests = trace(*[(n,) for n in range(50)])
    first, second = replicas(2, "random"), replicas(2, "random")
    served(first, *requests)
    served(second, *requests)
    assert first.extras() == second.extras()
    assert all(n > 10 for n in _requests_of(first))


def test_least_load_goes_to_who_computed_least() -> None:
    """A long prompt on one is as much as several on the other."""
    lane = replicas(2, "least-load")
    served(lane, *trace((1, 2, 3, 4, 5), (6,), (7,), (8,)))
    assert _requests_of(lane) == [1, 3]


def test_sessions_stay_where_they_began() -> None:
    """Each turn finds the one before, however many replicas there are."""
    lane = replicas(5, "session")
    turns = [
        said_in(name, *range(n * 100, n * 100 + k))
        for k in (1, 2, 3)
        for n, name in enumerate("abcdef")
    ]
    assert sum(served(lane, *turns)) == 6 * (1 + 2)


def test_prefix_aware_routing_finds_what_is_cached() -> None:
    """A request goes where its prefix is, whoever sent it."""
    lane = replicas(3, "prefix-aware")
    served(lane, *trace((1, 2), (3, 4), (5, 6)))
    assert _requests_of(lane) == [1, 1, 1]
    assert served(lane, *trace((3, 4, 7), (1, 2, 8), (5, 6, 9))) == [2, 2, 2]


def test_a_replica_that_has_too_much_is_passed_over() -> None:
    """One prefix for all traffic does not leave the others idle."""
    lane = replicas(2, "prefix-aware")
    served(lane, *trace(*[(1, n) for n in range(2, 60)]))
    assert min(_requests_of(lane)) > 10


def test_what_replicas_cannot_be() -> None:
    """None, or routed in a way that nobody knows."""
    with pytest.raises(ConfigError, match="replicas = 0"):
        WhatIf(n_replicas=0)
    with pytest.raises(ConfigError, match="random, least-load, prefix-aware, session"):
        WhatIf(routing="best")


def row_of(
    what_if: WhatIf, *requests: TraceRequest, policy: str = "lru"
) -> tuple[int, dict[str, object]]:
    plan = ReplayPlan(policies=[policy], capacities=[Capacity(100)], what_if=what_if)
    (run,) = make_runs(plan, 4, has_partial_ids=True, has_tenants=requests[0].tenant is not None)
    for request in requests:
        run.add(request)
    row = run.row("t", requests)
    return row.counted.sums.hit_blocks, dict(row.extras)


@pytest.mark.parametrize("policy", ["lru", "belady", "flat-lru"])
def test_tenants_are_isolated_under_every_policy(policy: str) -> None:
    """As in a server; where a replay shares all, they hit each other's."""
    requests = [by("a", 1, 2), by("b", 1, 2), by("b", 1, 2)]
    assert row_of(WhatIf(), *requests, policy=policy)[0] == 2
    assert row_of(WhatIf(is_isolated=False), *requests, policy=policy)[0] == 4


def test_what_ifs_go_together() -> None:
    """Replicas with published prompts and a host tier each."""
    what_if = WhatIf(n_replicas=2, published=[SYSTEM], tiers={"host": Capacity(5)})
    hit_blocks, extras = row_of(what_if, by("a", 1, 2, 3), by("b", 1, 2, 4))
    assert hit_blocks == 4
    assert extras["routing"] == "prefix-aware"
    assert len(extras["replicas"]) == 2  # type: ignore[arg-type]


def test_computed_policies_are_of_one_cache() -> None:
    """The optimum of a fleet or of tiers is another question."""
    for what_if in (WhatIf(n_replicas=2), WhatIf(tiers={"host": Capacity(1)})):
        with pytest.raises(ConfigError, match="policy = 'belady': is computed for one cache"):
            ReplayPlan(policies=["belady"], what_if=what_if)


def _requests_of(lane: Replicas) -> list[int]:
    replicas_found = lane.extras()["replicas"]
    assert isinstance(replicas_found, list)
    return [replica["requests"] for replica in replicas_found]
