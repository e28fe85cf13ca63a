"""Faults in how prompts are compared, found and copied."""

from __future__ import annotations

from tests.index.planting import Fault

MATCHING: tuple[Fault, ...] = (
    Fault(
        name="match-without-comparing",
        module="tree",
        old="until <= end_bytes and has_at(edge, at) and",
        new="until <= end_bytes and",
        why="the first token of an edge is looked up already, so the rest seems to be known",
        tests=("test_cache.py::test_requests_that_part_late_merge_what_they_share",),
    ),
    Fault(
        name="child-by-its-first-token",
        module="children",
        old="if entry is None or entry.edge[: self._block_bytes] != block:",
        new="if entry is None:",
        why="most children are alone with their first token",
        tests=("test_children.py::test_a_child_is_found_by_its_whole_first_block",),
    ),
    Fault(
        name="half-a-token-is-shared",
        module="tokens",
        old="return (left + n_equal) // TOKEN_BYTES - a_start",
        new="return -(-(left + n_equal) // TOKEN_BYTES) - a_start",
        why="bytes are turned into tokens by rounding up, as when blocks are counted",
        tests=("test_tokens.py::test_one_different_bit_in_a_long_prompt_is_found",),
    ),
    Fault(
        name="negative-ids-are-packed",
        module="tokens",
        old="if kind in _UNSIGNED or bytes(packed[TOKEN_BYTES - 1 :: TOKEN_BYTES]).isascii():",
        new="if kind in _UNSIGNED | _SIGNED:",
        why="a signed buffer has the right item size too",
        tests=("test_tokens.py::test_what_is_no_token_id_is_refused",),
    ),
    Fault(
        name="any-neighbour-is-copied-from",
        module="tree",
        old="return bucket[max(keys, key=lambda key: common_prefix_tokens(key, 0, wanted, 0))]",
        new="return bucket[keys[0]]",
        why="the keys come sorted, so the first seems to be the best",
        tests=("test_token_exact.py::test_of_many_children_the_one_that_shares_most_is_copied",),
    ),
    Fault(
        name="new-keys-are-not-sorted",
        module="children",
        old="insort(chunk, key)",
        new="chunk.append(key)",
        why="it works until two children of one bucket come in the wrong order",
        tests=("test_children.py::test_a_bucket_equals_a_dict_and_a_sorted_list",),
    ),
    Fault(
        name="half-a-block-is-matched-whole",
        module="tree",
        old=" and until - at >= block_bytes and entry.runs[0]:",
        new=" and entry.runs[0]:",
        why="only published prompts end inside a block",
        tests=("test_prompts.py::test_a_prompt_of_any_length_is_found_to_its_last_token",),
    ),
    Fault(
        name="away-is-taken-for-resident",
        module="tree",
        old=" and until - at >= block_bytes and entry.runs[0]:",
        new=" and until - at >= block_bytes:",
        why="without a lower tier every known node is on the device",
        tests=("test_locations.py::test_what_is_given_up_stays_known",),
    ),
    Fault(
        name="all-of-a-prompt-is-a-hit",
        module="admission",
        old="match, passage = self.find(root, tokens, length - 1)",
        new="match, passage = self.find(root, tokens, length)",
        why="the rule that a token is left to compute is kept at one place alone",
        tests=("test_cache.py::test_a_hit_leaves_a_token_to_compute",),
    ),
    Fault(
        name="a-started-block-is-stored",
        module="cache",
        old="n_full = length // self.block_size_tokens",
        new="n_full = -(-length // self.block_size_tokens)",
        why="room is counted by rounding up, what is stored by rounding down",
        tests=("test_cache.py::test_nothing_is_matchable_before_its_kv_is_written",),
    ),
    Fault(
        name="one-token-less-is-copied",
        module="admission",
        old="BlockCopy(group, first, own[0].first, n_shared)",
        new="BlockCopy(group, first, own[0].first, n_shared - 1)",
        why="the last token of a prompt is never a hit, but that is taken off already",
        tests=("test_token_exact.py::test_the_shared_tokens_of_a_block_are_copied_to_a_fresh_one",),
    ),
    Fault(
        name="the-copy-goes-to-the-last-run",
        module="admission",
        old="BlockCopy(group, first, own[0].first, n_shared)",
        new="BlockCopy(group, first, own[-1].first, n_shared)",
        why="new blocks mostly are one run, whose first and last are the same",
        tests=("test_token_exact.py::test_a_copy_goes_to_the_first_of_the_new_blocks",),
    ),
    Fault(
        name="one-layer-group-is-copied",
        module="admission",
        old="for group, own in enumerate(lease.own):",
        new="for group, own in enumerate(lease.own[:1]):",
        why="most models have one group",
        tests=("test_token_exact.py::test_every_layer_group_is_copied",),
    ),
    Fault(
        name="the-source-of-a-copy-is-not-pinned",
        module="admission",
        old=(
            "        self._keeper.pin(source)\n"
            "        try:\n"
            "            self._room.take(lease, n_blocks, now)\n"
            "            self._copy_first_block(source, lease, n_shared)\n"
            "        except BaseException:\n"
            "            self._keeper.unpin(source, now)\n"
            "            self.let_go(lease, now)\n"
            "            raise\n"
            "        self._keeper.unpin(source, now)\n"
        ),
        new=(
            "        try:\n"
            "            self._room.take(lease, n_blocks, now)\n"
            "            self._copy_first_block(source, lease, n_shared)\n"
            "        except BaseException:\n"
            "            self.let_go(lease, now)\n"
            "            raise\n"
        ),
        why="it is not on the path that the lease pins",
        tests=("test_token_exact.py::test_making_room_does_not_take_the_source_of_the_copy",),
    ),
    Fault(
        name="a-match-sees-a-hole",
        module="admission",
        old="        if seen == match.n_blocks:\n",
        new="        if seen <= match.n_blocks:\n",
        why="the comparison is too wide: nothing is ever cut",
        tests=("test_windows.py::test_a_match_ends_where_its_window_is_whole",),
    ),
    Fault(
        name="a-window-begins-too-early",
        module="windows",
        old="return max(position - self.windows[group] + 1, 0) // self._block_tokens",
        new="return max(position - self.windows[group], 0) // self._block_tokens",
        why="a window of n tokens has the token itself among them",
        tests=("test_windows.py::test_a_long_prompt_needs_no_more_than_its_window_and_a_chunk",),
    ),
    Fault(
        name="a-held-window-is-shed",
        module="windows",
        old="if node.windows[group] and not node.window_users[group]:",
        new="if node.windows[group]:",
        why="what is listed has blocks; that somebody sees them is another matter",
        tests=(
            "test_windows.py::test_a_match_ends_where_its_window_is_whole",
            "test_windows.py::test_what_is_computed_again_fills_the_hole",
        ),
    ),
    Fault(
        name="a-lead-is-let-go",
        module="windows",
        old="is_between = part.lead_end < above.end_block <= first",
        new="is_between = above.end_block <= first",
        why="what lies before the window is let go, whatever it is",
        tests=("test_windows.py::test_what_every_token_sees_is_held_to_the_end",),
    ),
    Fault(
        name="a-lead-is-held-for-ever",
        module="windows",
        old="            if part.lead_end:\n                self._leave_lead(group, part, node)\n",
        new="",
        why="whoever leaves lets go of all up to its last block already",
        tests=("test_windows.py::test_what_every_token_sees_is_held_to_the_end",),
    ),
    Fault(
        name="a-node-goes-on-after-a-lead",
        module="committer",
        old="for end in self._windows.cuts(n_before, n_full):",
        new="for end in (n_full,):",
        why="what is stored in one seems to be one node",
        tests=("test_windows.py::test_nodes_end_where_the_first_tokens_do",),
    ),
    Fault(
        name="a-match-does-without-a-lead",
        module="windows",
        old="            if lead_end < self.lead_blocks[group]:\n",
        new="            if lead_end < self.lead_blocks[group] and not intervals:\n",
        why="a window that is whole seems to be enough",
        tests=("test_windows.py::test_without_its_first_blocks_nothing_is_found",),
    ),
)
