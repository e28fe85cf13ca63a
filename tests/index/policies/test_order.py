"""The order that each policy gives things up in."""

from __future__ import annotations

import pytest

from prefixcache.errors import ConfigError
from prefixcache.index.policies import (
    CostAwarePolicy,
    FifoPolicy,
    LfuPolicy,
    LruPolicy,
    PriorityPolicy,
    SlruPolicy,
    TtlPolicy,
)
from tests.index.policies.fake_tree import FakeTree


def test_lru_gives_up_the_longest_unused_first() -> None:
    """The order is that of last use, not that of storing."""
    tree = FakeTree(LruPolicy())
    a, b, c = (tree.store(None) for _ in range(3))
    tree.use(a)
    assert tree.drain() == [b, c, a]


def test_lru_exposes_a_parent_at_its_last_use() -> None:
    """A parent that was used with its child goes right after it, before what was used later."""
    tree = FakeTree(LruPolicy())
    parent = tree.store(None)
    child = tree.store(parent)
    later = tree.store(None)
    assert tree.drain() == [child, parent, later]


def test_ttl_names_what_was_idle_for_too_long() -> None:
    """From the limit on, and the longest idle first; use starts the time again."""
    tree = FakeTree(TtlPolicy(idle_ttl_seconds=10))
    a, b = tree.store(None), tree.store(None)
    tree.use(a)  # at 3; b was used at 2
    assert tree.policy.overdue(11.9) is None
    assert tree.policy.overdue(12) is b
    tree.remove(b)
    assert tree.policy.overdue(12.9) is None
    assert tree.policy.overdue(13) is a


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_ttl_refuses_a_limit_that_keeps_nothing(seconds: float) -> None:
    """The limit is above 0."""
    with pytest.raises(ConfigError, match="idle_ttl_seconds"):
        TtlPolicy(idle_ttl_seconds=seconds)


def test_lfu_gives_up_the_least_often_hit_first() -> None:
    """Storing is no hit; among equals the longest unused goes first."""
    tree = FakeTree(LfuPolicy())
    a, b, c = (tree.store(None) for _ in range(3))
    for node in (a, a, b, c):
        tree.use(node)
    assert tree.drain() == [b, c, a]


def test_fifo_takes_no_notice_of_use() -> None:
    """What was stored first goes first."""
    tree = FakeTree(FifoPolicy())
    a, b, c = (tree.store(None) for _ in range(3))
    tree.use(a)
    assert tree.drain() == [a, b, c]


def test_priority_goes_before_recency() -> None:
    """An entry has the highest priority of its requests, and keeps it."""
    tree = FakeTree(PriorityPolicy())
    a = tree.store(None, priority=1)
    b, c = tree.store(None), tree.store(None)
    tree.use(a)
    tree.use(b)
    assert tree.drain() == [c, b, a]


def test_slru_gives_up_what_was_never_hit_first() -> None:
    """One hit protects, however old it is."""
    tree = FakeTree(SlruPolicy(protected_share=0.5))
    a, b, c = (tree.store(None) for _ in range(3))
    tree.use(a)
    d = tree.store(None)
    assert tree.drain() == [b, c, d, a]


def test_slru_protects_no_more_than_its_share() -> None:
    """The oldest protected entry goes on probation, as if it had just been used."""
    tree = FakeTree(SlruPolicy(protected_share=0.5))
    a, b, c, d = (tree.store(None) for _ in range(4))
    for node in (a, b, c):
        tree.use(node)  # the third makes 3 of 4 blocks protected: a goes on probation
    assert tree.drain() == [d, a, b, c]


@pytest.mark.parametrize("share", [0, 1.1, float("nan")])
def test_slru_refuses_an_impossible_share(share: float) -> None:
    """The share is above 0 and at most 1."""
    with pytest.raises(ConfigError, match="protected_share"):
        SlruPolicy(protected_share=share)


def test_cost_aware_keeps_what_was_hit() -> None:
    """What was found cached before goes last, as far as its share allows."""
    tree = FakeTree(CostAwarePolicy(protected_share=0.25))
    a, b, c, d = (tree.store(None) for _ in range(4))
    tree.use(a)
    assert tree.drain() == [b, c, d, a]


def test_cost_aware_keeps_deep_entries_longer() -> None:
    """Of two edges of one length, the one behind the longer prefix stays."""
    tree = FakeTree(CostAwarePolicy())
    base = tree.store(None, 100)
    deep = tree.store(base, 10)
    shallow = tree.store(None, 10)
    assert tree.drain()[:2] == [shallow, deep]


@pytest.mark.parametrize("turn_first", [True, False])
def test_cost_aware_weighs_depth_not_length(turn_first: bool) -> None:
    """Among edges that end at one depth, whatever their length, the longest unused goes first."""
    tree = FakeTree(CostAwarePolicy())
    base = tree.store(None, 99)
    first = tree.store(base, 1) if turn_first else tree.store(None, 100)
    second = tree.store(None, 100) if turn_first else tree.store(base, 1)
    order = tree.drain()
    assert order.index(first) < order.index(second)


def test_cost_aware_lets_worth_wear_off() -> None:
    """What nobody uses goes in the end, however much it is worth."""
    tree = FakeTree(CostAwarePolicy())
    dear = tree.store(None, 500)
    given = []
    for _ in range(40):
        tree.store(None, 10)
        given.append(tree.give_up())
    assert dear in given
