"""Faults in who may have and know what: quotas, prompts, twins, and what is told."""

from __future__ import annotations

from tests.index.planting import Fault

TENANTS: tuple[Fault, ...] = (
    Fault(
        name="one-more-than-the-maximum",
        module="accounts",
        old="return account.max_blocks - account.n_held + account.n_slack - own_path",
        new="return account.max_blocks - account.n_held + account.n_slack - own_path + 1",
        why="the block that is asked for is not held yet",
        tests=("test_quotas.py::test_a_tenant_has_never_more_than_its_maximum",),
    ),
    Fault(
        name="free-blocks-know-no-maximum",
        module="accounts",
        old="            and account.max_blocks == self._pools.n_blocks\n",
        new="",
        why="what is free costs nobody anything",
        tests=("test_quotas.py::test_a_tenant_has_never_more_than_its_maximum",),
    ),
    Fault(
        name="reserves-are-held-by-others",
        module="accounts",
        old="kept_for_others = reserves.n_unused - account.unused_reserve",
        new="kept_for_others = 0",
        why="reserves are spared when prefixes are evicted",
        tests=("test_quotas.py::test_a_reserve_is_kept_obtainable_not_empty",),
    ),
    Fault(
        name="slack-uses-up-a-reserve",
        module="accounts",
        old="return max(self.reserved_blocks - self.n_held + self.n_slack, 0)",
        new="return max(self.reserved_blocks - self.n_held, 0)",
        why="slack is held like the rest",
        tests=("test_quotas.py::test_slack_in_a_reserve_is_not_yet_used",),
    ),
    Fault(
        name="slack-is-taken-from-a-reserve",
        module="room",
        old="                most = min(most, lease.account.excess)\n",
        new="                pass\n",
        why="nobody has asked for it",
        tests=("test_quotas.py::test_others_take_no_slack_that_lies_within_a_reserve",),
    ),
    Fault(
        name="the-least-over-its-share-gives",
        module="accounts",
        old="        account = self._furthest(now)\n",
        new=(
            "        givers = [a for a in self if a.policy.victim(now) is not None]\n"
            "        account = min(givers, key=lambda a: a.excess, default=None)\n"
        ),
        why="a minimum of what a heap holds negated",
        tests=("test_quotas.py::test_who_has_grown_past_the_others_gives_first",),
    ),
    Fault(
        name="a-giver-gives-to-its-end",
        module="keeper",
        old="if freed == n_blocks or not account.has_all_cached:",
        new="if freed == n_blocks:",
        why="one tenant is served at a time, and the order was asked for",
        tests=("test_quotas.py::test_all_shares_are_equal_beyond_the_reserves",),
    ),
    Fault(
        name="the-order-of-givers-is-old",
        module="accounts",
        old=(
            "            elif -known != account.excess:\n"
            "                self._givers.push(account, -account.excess)\n"
        ),
        new="",
        why="an entry that is first was first when it came in",
        tests=(
            "test_quotas.py::test_who_has_grown_past_the_others_gives_first",
            "test_quotas.py::test_a_lowered_reserve_counts_at_once",
        ),
    ),
    Fault(
        name="reserves-may-be-more-than-the-pool",
        module="accounts",
        old="if quota.reserved_blocks > most:",
        new="if quota.reserved_blocks > self._pools.n_blocks:",
        why="each one alone is not",
        tests=("test_quotas.py::test_reserves_beyond_the_pool_are_refused",),
    ),
    Fault(
        name="shared-with-nobody-is-shared-with-all",
        module="publisher",
        old="tenants = (None,) if published.tenants is None else published.tenants",
        new="tenants = published.tenants or (None,)",
        why="an empty set is as false as none",
        tests=("test_prompts.py::test_only_chosen_tenants_find_a_prompt",),
    ),
    Fault(
        name="a-prompt-is-found-by-all",
        module="publisher",
        old=(
            "        for tenant in (None, namespace.tenant):\n"
            "            for published in self._by_start.get((system, tenant, block), ()):\n"
        ),
        new="        for _tenant in (None,):\n            for published in self.prompts:\n",
        why="all prompts begin alike or they do not; who may use them is asked elsewhere",
        tests=("test_prompts.py::test_only_chosen_tenants_find_a_prompt",),
    ),
    Fault(
        name="adapters-share-their-models-prompts",
        module="publisher",
        old="        adapter=namespace.adapter,\n",
        new="",
        why="an adapter has the model's name",
        tests=("test_mounts.py::test_a_prompt_is_for_one_model_adapter_and_format",),
    ),
    Fault(
        name="a-request-stores-below-a-retired-prompt",
        module="forest",
        old="            anchor.published.is_live\n            and isinstance",
        new="            isinstance",
        why="its own tree is current",
        tests=("test_prompts.py::test_a_request_keeps_its_blocks_though_its_prompt_is_retired",),
    ),
    Fault(
        name="a-request-stores-below-a-prompt-after-a-bump",
        module="forest",
        old="            and self.is_current(root)\n",
        new="",
        why="the prompt is live, and so is what hangs from it",
        tests=(
            "test_prompts.py::test_a_request_behind_a_prompt_ends_after_its_tenant_was_invalidated",
        ),
    ),
    Fault(
        name="a-mount-outlives-the-systems-tree",
        module="forest",
        old="            and self.is_current(anchor.system_root)\n",
        new="",
        why="the tenant's own tree is current",
        tests=("test_prompts.py::test_what_hangs_from_an_invalidated_prompt_goes_with_it",),
    ),
    Fault(
        name="mounts-outlive-their-prompt",
        module="publisher",
        old="        self._forest.unmount(published)\n",
        new="",
        why="nobody finds them any more",
        tests=("test_retention.py::test_what_hung_from_a_retired_prompt_is_retained_no_more",),
    ),
    Fault(
        name="retiring-one-of-equal-prompts-takes-all",
        module="publisher",
        old="return [other for other in self.prompts if (other.namespace, other.tokens) == place]",
        new="return []",
        why="versions differ, as a rule",
        tests=("test_prompts.py::test_versions_of_equal_tokens_are_retired_one_by_one",),
    ),
    Fault(
        name="an-equal-prompt-that-is-not-pinned-keeps-the-others-pin",
        module="prompts",
        old="if end is not None and not any(other.is_pinned for other in equals):",
        new="if end is not None and not equals:",
        why="its blocks stay in any case",
        tests=("test_prompts.py::test_a_prompt_that_is_not_pinned_goes_like_anything_else",),
    ),
    Fault(
        name="a-quota-is-blamed-for-a-path-that-is-cached",
        module="room",
        old="by_quota = n_blocks > self._accounts.n_left_of_quota(account, own_path)",
        new="by_quota = n_blocks > self._accounts.n_left_of_quota(account)",
        why="what is cached takes no new block",
        tests=("test_quotas.py::test_what_a_quota_stops_is_told_apart_from_a_full_pool",),
    ),
    Fault(
        name="a-mount-goes-through-too-much",
        module="publisher",
        old="yield match, Passage(published, cut, mount)",
        new="yield match, Passage(published, through, mount)",
        why="the prompt is followed further than the mount",
        tests=("test_mounts.py::test_what_was_stored_while_a_prompt_was_read_is_found_afterwards",),
    ),
    Fault(
        name="prompts-are-used-by-nobody",
        module="keeper",
        old="above = above.parent if above.n_blocks else above.source",
        new="above = above.parent",
        why="the tenant's tree ends at the mount",
        tests=("test_mounts.py::test_a_use_by_any_tenant_counts_for_the_prompt",),
    ),
    Fault(
        name="a-request-may-name-the-system",
        module="cache",
        old=(
            "        if namespace.tenant == SYSTEM_TENANT:\n"
            '            raise ConfigError("tenant", namespace.tenant, "is the published '
            "prompts' own\")\n"
        ),
        new="",
        why="who could know its name",
        tests=("test_quotas.py::test_the_systems_name_is_nobodys",),
    ),
    Fault(
        name="a-waiter-waits-for-more-than-it-shares",
        module="inflight",
        old="if stored >= waiter.n_tokens:",
        new="if stored > waiter.n_tokens:",
        why="more than what is shared seems to be safe; a leader may store no more",
        tests=("test_twins.py::test_a_waiter_is_ready_once_all_that_both_share_is_stored",),
    ),
    Fault(
        name="all-waiters-are-heirs",
        module="inflight",
        old="        heir.is_ready = True\n        followers",
        new=(
            "        for waiter in waiters:\n            waiter.is_ready = True\n        followers"
        ),
        why="whose leader has ended need not wait",
        tests=("test_twins.py::test_when_a_leader_is_aborted_one_waiter_leads_the_others",),
    ),
    Fault(
        name="the-lowest-priority-inherits",
        module="inflight",
        old="key=lambda waiter: (-waiter.priority, waiter.serial)",
        new="key=lambda waiter: (waiter.priority, waiter.serial)",
        why="a minimum over priorities, of which the highest counts",
        tests=("test_twins.py::test_when_a_leader_is_aborted_one_waiter_leads_the_others",),
    ),
    Fault(
        name="an-abort-wakes-nobody",
        module="cache",
        old=(
            "        if self._in_flight.waiters:\n"
            "            self._in_flight.ended(lease)\n"
            "        self._admission.let_go"
        ),
        new="        self._admission.let_go",
        why="a leader that has stored all has no waiters left",
        tests=("test_twins.py::test_when_a_leader_is_aborted_one_waiter_leads_the_others",),
    ),
    Fault(
        name="a-twin-in-any-tree",
        module="inflight",
        old="if lease.node is match.node and lease.prompt:",
        new="if lease.prompt:",
        why="prompts that begin alike have the same KV, in one namespace",
        tests=("test_twins.py::test_nobody_waits_for_less_than_a_block_or_for_another_path",),
    ),
    Fault(
        name="a-reason-tells-of-other-tenants",
        module="admission",
        old="others = self._forest.roots_of(root.namespace.tenant)",
        new="others = (anchor for anchor in self._forest if isinstance(anchor, Root))",
        why="any root that is not this one is another namespace",
        tests=(
            "test_misses.py::test_what_the_tenant_has_in_another_namespace_is_said_to_be_there",
        ),
    ),
    Fault(
        name="what-went-is-noted-where-it-ended",
        module="keeper",
        old="self._gone.note(account.tenant, leaf.end_block - n_given, block, reason)",
        new="self._gone.note(account.tenant, leaf.end_block, block, reason)",
        why="the end of the leaf is at hand",
        tests=("test_misses.py::test_what_was_evicted_is_told_from_what_was_never_there",),
    ),
    Fault(
        name="a-key-without-its-parent",
        module="events",
        old="xxhash.xxh3_128_digest(keys[-1] + tokens[at : at + block_bytes])",
        new="xxhash.xxh3_128_digest(tokens[at : at + block_bytes])",
        why="the ids name a block well enough for one prompt",
        tests=("test_events.py::test_a_key_names_a_block_and_all_that_comes_before_it",),
    ),
    Fault(
        name="a-key-outlives-a-bump",
        module="events",
        old="msgspec.msgpack.encode((root.namespace, root.generations, block_bytes))",
        new="msgspec.msgpack.encode((root.namespace, block_bytes))",
        why="namespaces are told apart",
        tests=("test_events.py::test_keys_of_equal_tokens_differ_between_generations",),
    ),
    Fault(
        name="a-key-of-blocks-that-were-trimmed",
        module="tree",
        old=(
            "    leaf.n_blocks -= n_blocks\n"
            "    leaf.end_block -= n_blocks\n"
            "    leaf.digest = None\n"
        ),
        new="    leaf.n_blocks -= n_blocks\n    leaf.end_block -= n_blocks\n",
        why="it was right when it was asked for",
        tests=("test_events.py::test_a_key_does_not_depend_on_what_had_been_there_before",),
    ),
    Fault(
        name="removals-are-told-from-the-head",
        module="keeper",
        old="self._observers.removed(leaf, kept, n_given)",
        new="self._observers.removed(leaf, 0, n_given)",
        why="as many blocks went, from where the node begins",
        tests=("test_events.py::test_the_tail_of_a_long_edge_is_told_with_its_place",),
    ),
    Fault(
        name="the-parent-is-the-prompts-last-block",
        module="events",
        old="mount.published.tokens[: mount.end_block * block_bytes]",
        new="mount.published.tokens",
        why="most requests go through all of a prompt",
        tests=("test_events.py::test_what_hangs_from_a_prompt_has_the_prompts_block_for_parent",),
    ),
    Fault(
        name="a-snapshot-is-not-bounded",
        module="snapshot",
        old="while queue and len(views) < most:",
        new="while queue:",
        why="trees are small in tests",
        tests=("test_snapshot.py::test_it_is_bounded_and_says_so",),
    ),
    Fault(
        name="a-snapshot-shows-all-tenants",
        module="snapshot",
        old="tenant not in (None, root.namespace.tenant)",
        new="False",
        why="an operator sees them all",
        tests=("test_snapshot.py::test_a_node_tells_its_place_and_its_use",),
    ),
    Fault(
        name="counters-fall-when-a-tree-goes",
        module="forest",
        old="            anchor.account.tally.merge(anchor.tally)\n",
        new="",
        why="the tree had them, and is gone",
        tests=("test_stats.py::test_counters_of_trees_that_have_gone_are_kept",),
    ),
)
