"""Faults in what goes when: eviction, retention, generations and lower tiers."""

from __future__ import annotations

from tests.index.planting import Fault

LIFETIMES: tuple[Fault, ...] = (
    Fault(
        name="use-is-not-recent",
        module="keeper",
        old="            above.last_used = now\n",
        new="",
        why="the policy's list has an order of its own",
        tests=("test_eviction.py::test_a_split_leaves_nothing_worth_less_than_what_is_below_it",),
    ),
    Fault(
        name="a-head-goes-before-its-tail",
        module="policies.keyed",
        old=(
            "        if not entry.n_resident:\n"
            "            self._leaves.push(entry, self._key(entry))"
        ),
        new="        self._leaves.push(entry, self._key(entry))",
        why="every listed entry can be given up, but not yet",
        tests=("policies/test_contract.py::test_a_parent_goes_after_its_children",),
    ),
    Fault(
        name="a-new-leaf-is-not-told",
        module="keeper",
        old="            parent.account.policy.expose(parent)",
        new="            pass",
        why="the default policy needs no such news",
        tests=("test_eviction.py::test_every_policy_gives_all_of_a_tree_in_the_end",),
    ),
    Fault(
        name="a-split-forgets-its-hits",
        module="tree",
        old=(
            "upper.last_used, upper.hits, upper.priority = node.last_used, node.hits, node.priority"
        ),
        new="upper.last_used, upper.priority = node.last_used, node.priority",
        why="a new node begins with none",
        tests=("test_eviction.py::test_a_split_leaves_nothing_worth_less_than_what_is_below_it",),
    ),
    Fault(
        name="priority-is-not-raised",
        module="keeper",
        old=(
            "            if priority:\n"
            "                above.priority = max(above.priority, priority)\n"
        ),
        new="",
        why="only one of seven policies looks at it",
        tests=("test_eviction.py::test_a_use_counts_for_all_that_was_matched",),
    ),
    Fault(
        name="a-use-counts-for-the-end-alone",
        module="keeper",
        old="            above = above.parent if above.n_blocks else above.source\n",
        new="            return\n",
        why="the lease is at that node",
        tests=("test_eviction.py::test_a_use_counts_for_all_that_was_matched",),
    ),
    Fault(
        name="one-overdue-prefix-goes",
        module="keeper",
        old="while (entry := account.policy.overdue(now)) is not None:",
        new="if (entry := account.policy.overdue(now)) is not None:",
        why="the next call takes the next one",
        tests=("test_eviction.py::test_what_was_idle_too_long_goes_all_at_once",),
    ),
    Fault(
        name="a-whole-edge-is-pinned-for-a-part",
        module="keeper",
        old="total += edge_blocks if above is node else above.n_blocks",
        new="total += above.n_blocks",
        why="the node is what is pinned, but it is cut before",
        tests=("test_eviction.py::test_the_rest_of_a_matched_edge_makes_room_for_the_request",),
    ),
    Fault(
        name="what-is-kept-is-listed",
        module="keeper",
        old=(
            "                if not above.keeps:\n                    account.policy.add(above)\n"
        ),
        new=("                if above:\n                    account.policy.add(above)\n"),
        why="a node that nobody pins can be given up, other things equal",
        tests=("test_retention.py::test_what_is_retained_outlasts_all_traffic",),
    ),
    Fault(
        name="retentions-never-end",
        module="retention",
        old="self.next_end = min(self.next_end, expires)",
        new="self.next_end = max(self.next_end, expires)",
        why="the comparison with forever is turned round",
        tests=("test_retention.py::test_any_request_ends_what_is_overdue",),
    ),
    Fault(
        name="the-old-end-of-a-renewal-counts",
        module="retention",
        old="expires, priority = max(expires, known.expires), max(",
        new="expires, priority = known.expires, max(",
        why="the node is in the order of ends already",
        tests=("test_retention.py::test_a_renewed_retention_lasts_to_the_later_end",),
    ),
    Fault(
        name="the-strongest-gives-way-first",
        module="retention",
        old="Retention(priority, expires)",
        new="Retention(-priority, expires)",
        why="a heap gives the smallest, elsewhere the sign is turned",
        tests=("test_retention.py::test_the_weakest_retention_gives_way_first",),
    ),
    Fault(
        name="the-budget-is-ignored",
        module="retainer",
        old="over = node.account.n_kept + _unkept_blocks(node) - self._most_blocks",
        new="over = _unkept_blocks(node) - self._most_blocks",
        why="the request's own blocks are counted, those retained before are not",
        tests=("test_retention.py::test_a_tenant_retains_no_more_than_its_budget",),
    ),
    Fault(
        name="a-stale-epoch-is-not-checked",
        module="forest",
        old=(
            "        if root.generations != self._generations.current(root.namespace):\n"
            "            return False\n"
        ),
        new="",
        why="the epoch tells that something was invalidated, hardly ever this",
        tests=("test_namespaces.py::test_an_invalidation_frees_nothing_by_itself",),
    ),
    Fault(
        name="a-root-is-used-again-after-a-bump",
        module="forest",
        old=(
            "if known is not None and (known.checked_epoch == self.epoch or "
            "self.is_current(known)):"
        ),
        new="if known is not None:",
        why="the namespace has one already",
        tests=("test_namespaces.py::test_old_and_new_generation_live_side_by_side",),
    ),
    Fault(
        name="a-request-stores-after-a-bump",
        module="cache",
        old="if not (lease.stores and (is_current or self._forest.is_storable(lease.anchor))):",
        new="if not lease.stores:",
        why="whether it may store was settled when it came",
        tests=("test_namespaces.py::test_a_request_never_stores_into_a_newer_generation",),
    ),
    Fault(
        name="an-adapters-trees-are-not-found",
        module="namespaces",
        old=(
            "    if namespace.adapter is not None:\n"
            "        scopes.append(Scope.adapter(namespace.adapter))\n"
        ),
        new="",
        why="most namespaces have no adapter",
        tests=("test_namespaces.py::test_an_invalidation_reaches_its_scope_and_nothing_else",),
    ),
    Fault(
        name="one-invalidation-is-reclaimed",
        module="forest",
        old="        if members:\n            self._stale.append(members)",
        new="        if members:\n            self._stale = deque([members])",
        why="the last one is what is waited for",
        tests=("test_namespaces.py::test_every_invalidated_tree_is_reclaimed_not_the_last_alone",),
    ),
    Fault(
        name="a-bump-does-not-tell-of-stale-trees",
        module="forest",
        old="            self._stale.append(members)\n            self.has_stale = True\n",
        new="            self._stale.append(members)\n",
        why="the trees are in the queue, and the flag looks like a detail",
        tests=("test_namespaces.py::test_what_was_invalidated_goes_before_what_is_older",),
    ),
    Fault(
        name="stale-trees-do-not-go-first",
        module="keeper",
        old="freed = self.reclaim(n_blocks) if self._forest.has_stale else 0",
        new="freed = 0",
        why="they go some time, by `reclaim`",
        tests=("test_namespaces.py::test_what_was_invalidated_goes_before_what_is_older",),
    ),
    Fault(
        name="a-stale-path-stays-after-a-release",
        module="admission",
        old=(
            "        if not self._forest.is_storable(anchor):\n"
            "            self._keeper.reclaim_path(lease.node)\n"
        ),
        new="",
        why="reclaiming passes over it while it is pinned, and does not come again",
        tests=("test_namespaces.py::test_what_a_request_had_stored_before_goes_with_it",),
    ),
    Fault(
        name="what-was-invalidated-is-demoted",
        module="keeper",
        old="if self._locations.tier is not None and reason is _EVICTED:",
        new="if self._locations.tier is not None:",
        why="it leaves the device like anything else",
        tests=("test_locations.py::test_what_was_invalidated_is_not_demoted",),
    ),
    Fault(
        name="a-copy-is-never-forgotten",
        module="locations",
        old="            self._hooks.tell(self.tier.forget, copy.handle)\n",
        new="",
        why="nobody names it, so nobody misses it",
        tests=(
            "test_locations.py::test_what_is_on_the_device_and_goes_for_good_takes_its_copy_along",
        ),
    ),
    Fault(
        name="halves-begin-at-the-same-place-of-a-copy",
        module="locations",
        old=(
            "            node.copy = Copy(copy.handle, copy.first_block + n_blocks)\n"
            "            self._nodes_of[copy.handle][upper] = None"
        ),
        new="            self._nodes_of[copy.handle][upper] = None",
        why="both share the copy of what they were",
        tests=("test_locations.py::test_what_is_committed_again_is_on_the_device_again",),
    ),
    Fault(
        name="a-shared-copy-goes-with-the-first-half",
        module="locations",
        old=(
            "        del nodes[node]\n"
            "        if not nodes:\n"
            "            del self._nodes_of[copy.handle]\n"
        ),
        new=(
            "        del nodes[node]\n"
            "        if nodes is not None:\n"
            "            self._nodes_of.pop(copy.handle)\n"
        ),
        why="a copy is made for one node",
        tests=("test_locations.py::test_a_copy_that_two_nodes_share_goes_with_the_last_of_them",),
    ),
)
