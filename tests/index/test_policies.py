"""The contract of eviction policies, and least recently used first."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from prefixcache.index.policies import EvictionPolicy, LruPolicy
from prefixcache.index.tree import NodeId

POLICIES: list[Callable[[], EvictionPolicy]] = [LruPolicy]


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> EvictionPolicy:
    made: EvictionPolicy = request.param()
    return made


def add(policy: EvictionPolicy, node: int, last_used: float) -> None:
    policy.add(NodeId(node), n_tokens=16, last_used=last_used)


def test_nothing_listed_means_no_victim(policy: EvictionPolicy) -> None:
    """An empty policy and an emptied one name nobody."""
    assert policy.victim() is None
    add(policy, 1, 1)
    policy.discard(NodeId(1))
    assert policy.victim() is None


def test_discarding_the_unknown_is_harmless(policy: EvictionPolicy) -> None:
    """A node may be discarded twice, or without ever having been listed."""
    policy.discard(NodeId(9))
    add(policy, 1, 1)
    policy.discard(NodeId(1))
    policy.discard(NodeId(1))
    assert policy.victim() is None


def test_a_victim_stays_listed_until_discarded(policy: EvictionPolicy) -> None:
    """Asking changes nothing."""
    add(policy, 1, 1)
    assert policy.victim() == policy.victim() == 1


def test_only_listed_nodes_are_victims(policy: EvictionPolicy) -> None:
    """Whatever was added and discarded before, every listed node comes up exactly once."""
    rng = random.Random(1)
    listed: set[int] = set()
    for clock in range(3000):
        node = rng.randrange(50)
        if rng.random() < 0.5:
            policy.discard(NodeId(node))
            listed.discard(node)
        else:
            add(policy, node, clock)
            listed.add(node)
        victim = policy.victim()
        assert (victim is None) == (not listed)
        assert victim is None or victim in listed
    while (victim := policy.victim()) is not None:
        listed.remove(victim)
        policy.discard(victim)
    assert not listed


def test_lru_gives_up_the_longest_unused_first() -> None:
    """The order is that of last use, not that of listing."""
    policy = LruPolicy()
    for node, last_used in [(1, 5), (2, 3), (3, 9), (4, 1)]:
        add(policy, node, last_used)
    add(policy, 4, 7)
    order = []
    while (victim := policy.victim()) is not None:
        order.append(victim)
        policy.discard(victim)
    assert order == [2, 1, 4, 3]


def test_lru_does_not_grow_with_use() -> None:
    """A node that is used for ever costs no more memory than one used once."""
    policy = LruPolicy()
    for clock in range(10_000):
        add(policy, clock % 3, clock)
    assert len(policy._heap) < 200
