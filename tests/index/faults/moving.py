"""Faults in compaction: what changes places, and whose it is then."""

from __future__ import annotations

from tests.index.planting import Fault

MOVING: tuple[Fault, ...] = (
    Fault(
        name="only-the-mover-is-told",
        module="compaction",
        old="for node in {mover, occupant}:",
        new="for node in (mover,):",
        why="it is the mover that is to lie elsewhere",
        tests=(
            "test_compaction.py::test_interleaved_prompts_become_one_run_each_in_a_full_pool",
            "test_machine.py",
        ),
    ),
    Fault(
        name="what-a-request-holds-is-moved",
        module="compaction",
        old="return node.parent is not None and not node.pins and has_all(",
        new="return node.parent is not None and has_all(",
        why="it was in nobody's use when the pool was looked at",
        tests=("test_compaction.py::test_it_ends_when_what_it_has_seen_is_in_use",),
    ),
    Fault(
        name="what-has-left-the-tree-is-moved",
        module="compaction",
        old="return node.parent is not None and not node.pins and has_all(",
        new="return not node.pins and has_all(",
        why="its blocks are still written in it",
        tests=("test_compaction.py::test_it_ends_when_what_it_has_seen_is_gone",),
    ),
    Fault(
        name="what-was-free-is-free-still",
        module="compaction",
        old="is_there = pool.has_free(target) if occupant is None else",
        new="is_there = True if occupant is None else",
        why="nobody had it when the pool was looked at",
        tests=("test_compaction.py::test_what_was_free_may_have_been_taken_since",),
    ),
    Fault(
        name="a-copy-takes-no-block",
        module="compaction",
        old="            _trade(pool, target, source)\n",
        new="            pool.free(source)\n",
        why="what was left is free, and the rest seems to be as before",
        tests=("test_compaction.py::test_where_a_block_is_free_one_copy_is_enough",),
    ),
    Fault(
        name="what-is-pushed-aside-is-lost-sight-of",
        module="compaction",
        old="                places[pushed] = one + offset\n",
        new="                pass\n",
        why="a block that is in the way seems to be another prompt's",
        tests=("test_compaction.py",),
    ),
    Fault(
        name="all-that-can-be-moved-is",
        module="survey",
        old="            if n_blocks - in_place[best] > self._reading.most_exchanges * saved:\n",
        new="            if saved <= 0:\n",
        why="it is better in one run",
        tests=("test_compaction.py::test_what_would_take_more_copies_than_it_saves_stays",),
    ),
    Fault(
        name="long-runs-make-room",
        module="survey",
        old="_SHORT if self._is_short(span) else _COLD",
        new="_SHORT",
        why="all of it is cached",
        tests=("test_compaction.py::test_a_cold_run_is_broken_up_last",),
    ),
    Fault(
        name="the-middle-of-an-extent-is-its-beginning",
        module="blocks",
        old="begin = self._is_free.rfind(0, 0, first) + 1",
        new="begin = first",
        why="blocks are taken from the beginning of extents elsewhere",
        tests=("test_blocks.py::test_chosen_blocks_are_taken_wherever_they_lie",),
    ),
)
