"""What every eviction policy promises, whatever its order."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from prefixcache.config import EngineConfig, PolicyName
from prefixcache.errors import ConfigError
from prefixcache.index.entry import Entry
from prefixcache.index.policies import POLICY_NAMES, EvictionPolicy, PolicyOptions, make_policy
from tests.index.machines import run_machine
from tests.index.policies.fake_tree import FakeNode, FakeTree

TTL_SECONDS = 20.0
OPTIONS = PolicyOptions(idle_ttl_seconds=TTL_SECONDS, protected_share=0.5)

# a plain statement of the order, where there is one: the victim has the smallest
PLAIN_KEYS: dict[str, Callable[[Entry], tuple[float, ...]]] = {
    "lru": lambda entry: (entry.last_used,),
    "ttl": lambda entry: (entry.last_used,),
    "lfu": lambda entry: (entry.hits, entry.last_used),
    "fifo": lambda entry: (entry.created,),
    "priority": lambda entry: (entry.priority, entry.last_used),
}


@pytest.fixture(params=POLICY_NAMES)
def tree(request: pytest.FixtureRequest) -> FakeTree:
    return FakeTree(make_policy(request.param, OPTIONS))


def test_nothing_listed_means_no_victim(tree: FakeTree) -> None:
    """An empty policy and an emptied one name nobody."""
    assert tree.policy.victim(0.0) is None
    assert tree.policy.overdue(0.0) is None
    tree.pin(tree.store(None))
    assert tree.policy.victim(1e9) is None
    assert tree.policy.overdue(1e9) is None


def test_discarding_the_unlisted_is_harmless(tree: FakeTree) -> None:
    """An entry may be discarded twice, or without ever having been listed."""
    tree.policy.discard(FakeNode(None, 1, 0.0))
    node = tree.store(None)
    tree.policy.discard(node)
    tree.policy.discard(node)
    assert tree.policy.victim(tree.now) is None


def test_a_victim_stays_listed_until_discarded(tree: FakeTree) -> None:
    """Asking changes nothing."""
    tree.store(None)
    tree.store(None)
    first = tree.policy.victim(tree.now)
    assert first is not None
    assert tree.policy.victim(tree.now) is first


def test_a_parent_goes_after_its_children(tree: FakeTree) -> None:
    """What others depend on is named when they are gone, however old it is."""
    root = tree.store(None)
    children = [tree.store(root, n_blocks) for n_blocks in (3, 1, 2)]
    order = tree.drain()
    assert order[-1] is root
    assert set(order) == {root, *children}


def test_a_trimmed_victim_is_still_named(tree: FakeTree) -> None:
    """Blocks may be taken off the end of a listed leaf without a word."""
    node = tree.store(None, 5)
    assert tree.policy.victim(tree.now) is node
    node.n_blocks, node.end_block = 2, 2
    assert tree.policy.victim(tree.now) is node


def test_what_has_left_is_forgotten(tree: FakeTree) -> None:
    """Long use of a few entries costs no more memory than short use, and keeps no dead ones."""
    rng = random.Random(1)
    refs = []
    for _ in range(3000):
        node = tree.store(rng.choice([None, *tree.nodes]), rng.randint(1, 4))
        refs.append(weakref.ref(node))
        tree.use(rng.choice(list(tree.nodes)))
        if len(tree.nodes) > 20:
            tree.give_up()
        del node
    gc.collect()
    assert sum(ref() is not None for ref in refs) < 200
    tree.drain()
    gc.collect()
    assert sum(ref() is not None for ref in refs) < 100


def test_an_unknown_name_is_refused() -> None:
    """The message lists the names that there are."""
    with pytest.raises(
        ConfigError, match="lru, cost-aware, learned, lfu, fifo, slru, priority, ttl"
    ):
        make_policy("mru")


def test_settings_know_the_same_names_and_defaults() -> None:
    """What the engine's settings allow can be made, and nothing else."""
    assert get_args(PolicyName) == POLICY_NAMES
    assert EngineConfig().eviction_policy == POLICY_NAMES[0]
    assert EngineConfig().idle_ttl_seconds == PolicyOptions().idle_ttl_seconds


class PolicyMachine(RuleBasedStateMachine):
    """Whatever the order of calls, a victim is a listed leaf, and the right one."""

    name = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.policy: EvictionPolicy = make_policy(self.name, OPTIONS)
        self.tree = FakeTree(self.policy)
        self.held: list[FakeNode] = []

    def pick(self, index: int) -> FakeNode:
        return list(self.tree.nodes)[index % len(self.tree.nodes)]

    @rule(n_blocks=st.integers(1, 5), priority=st.integers(0, 2))
    def start(self, n_blocks: int, priority: int) -> None:
        self.held.append(self.tree.grow(None, n_blocks, priority))

    @precondition(lambda self: self.tree.nodes)
    @rule(index=st.integers(0, 99), n_blocks=st.integers(0, 5), priority=st.integers(0, 2))
    def branch(self, index: int, n_blocks: int, priority: int) -> None:
        node = self.pick(index)
        self.tree.hit(node, priority)
        self.held.append(self.tree.grow(node, n_blocks, priority) if n_blocks else node)

    @precondition(lambda self: any(node.n_blocks > 1 for node in self.tree.nodes))
    @rule(index=st.integers(0, 99))
    def match_midway(self, index: int) -> None:
        longer = [node for node in self.tree.nodes if node.n_blocks > 1]
        upper = self.tree.split(longer[index % len(longer)])
        self.tree.hit(upper)
        self.held.append(upper)

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 99))
    def end(self, index: int) -> None:
        self.tree.unpin(self.held.pop(index % len(self.held)))

    @rule(n_entries=st.integers(1, 4))
    def evict(self, n_entries: int) -> None:
        for _ in range(n_entries):
            self.tree.give_up()

    @precondition(lambda self: self.tree.listed_leaves)
    @rule(n_blocks=st.integers(1, 4))
    def trim_the_victim(self, n_blocks: int) -> None:
        victim = self.policy.victim(self.tree.now)
        assert victim is not None
        n_trimmed = min(n_blocks, victim.n_blocks - 1)
        victim.n_blocks -= n_trimmed
        victim.end_block -= n_trimmed

    @precondition(lambda self: self.tree.listed_leaves)
    @rule(index=st.integers(0, 99))
    def lose_another_leaf(self, index: int) -> None:
        leaves = self.tree.listed_leaves
        self.tree.remove(leaves[index % len(leaves)])

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.tree.now += seconds

    @rule()
    def give_up_everything(self) -> None:
        expected = set(self.tree.listed)
        assert set(self.tree.drain()) == expected

    @invariant()
    def the_links_tell_what_is_listed(self) -> None:
        for node in self.tree.nodes:
            is_listed = node in self.tree.listed
            assert (node.older is not None) == (node.newer is not None) == is_listed

    @invariant()
    def the_victim_is_a_listed_leaf(self) -> None:
        leaves = self.tree.listed_leaves
        victim = self.policy.victim(self.tree.now)
        assert (victim is None) == (not leaves) == (not self.tree.listed)
        assert victim is None or victim in leaves

    @invariant()
    def the_victim_is_the_first_in_order(self) -> None:
        key = PLAIN_KEYS.get(self.name)
        victim = self.policy.victim(self.tree.now)
        if key is not None and victim is not None:
            assert key(victim) == min(key(leaf) for leaf in self.tree.listed_leaves)

    @invariant()
    def overdue_is_what_the_time_limit_says(self) -> None:
        overdue = self.policy.overdue(self.tree.now)
        ages = [self.tree.now - leaf.last_used for leaf in self.tree.listed_leaves]
        if self.name == "ttl" and max(ages, default=0.0) >= TTL_SECONDS:
            assert overdue is not None
            assert self.tree.now - overdue.last_used == max(ages)
        else:
            assert overdue is None


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_any_order_of_calls_names_the_right_victim(name: str) -> None:
    """No order of calls makes a policy name what is pinned, gone or depended on."""
    machine = type("Machine", (PolicyMachine,), {"name": name})
    run_machine(machine, 60)
