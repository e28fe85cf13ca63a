"""Field cases as scripts."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cases.steps import (
    Op,
    P,
    abort,
    cached,
    evict,
    finish,
    hold,
    matched,
    play,
    pool,
    run,
)


def test_c01_a_prompt_that_is_all_cached_leaves_a_token_to_compute() -> None:
    """The second of two equal prompts of whole blocks is admitted."""
    assert not play(run("a", P), run("b", P), cached("a", 0), cached("b", 4, 7))


@pytest.mark.parametrize(("first", "second", "hit"), [(8, 9, 8), (7, 8, 4), (9, 9, 8)])
def test_c03_an_exact_edge_does_not_lose_the_hit(first: int, second: int, hit: int) -> None:
    """Producers of exactly, just under and just over whole blocks can be hit."""
    prompt = [*P, 5]
    assert not play(run("a", prompt[:first]), run("b", prompt[:second]), cached("b", hit))


def test_c05_a_waiting_request_is_matched_anew_when_it_is_admitted() -> None:
    """What was evicted while it waited does not count as cached."""
    assert not play(
        run("p", P),
        hold("x", [*range(20, 36)]),
        {"op": "queue", "id": "q", "tokens": [*P, 1, 1]},
        evict(2),
        abort("x"),
        hold("q", [*P, 1, 1]),
        cached("q", 0),
        pool(free=3, held=3),
        pool_blocks=6,
    )


def test_c19_the_last_sampled_token_has_no_kv() -> None:
    """Twelve tokens of which eleven were fed are two whole blocks."""
    assert not play(
        run("a", P, [60, 61, 62, 63]),
        matched([*P, 60, 61, 62, 63, 1, 1], 8),
        run("b", P, [60, 61, 62, 63, 64]),
        matched([*P, 60, 61, 62, 63, 1, 1], 12),
    )


def test_c22_less_than_a_block_makes_no_node() -> None:
    """No, one, two or three tokens match nothing, store nothing and break nothing."""
    empty = pool(free=8, cached=0, held=0)
    tokens = [4, 9, 4]
    inserts = [
        step
        for n in range(1, 4)
        for step in (
            matched(tokens[:n], 0),
            hold(f"h{n}", tokens[:n]),
            pool(free=7, cached=0, held=1),
            finish(f"h{n}"),
            run(f"r{n}", tokens[:n], [5]),
            empty,
            matched([*tokens, 5, 5], 0),
        )
    ]
    assert not play(
        matched([], 0), hold("h0", [], expect="reject"), *inserts, evict(5), empty, run("a", P)
    )
    # three of four positions written, though four tokens are known
    assert not play(run("s", tokens, [7]), matched([*tokens, 7, 7], 0), empty)


def test_r01_what_a_request_holds_is_not_evicted() -> None:
    """The matched node itself is safe, not only what is above it."""
    assert not play(
        run("a", P[:5]),
        run("b", [*P, 5]),
        hold("h", [*P, 5]),
        evict(8),
        matched([*P, 5], 8),
        pool(free=5, cached=0, held=3),
    )


def test_r02_released_blocks_can_be_evicted_at_once() -> None:
    """A count that falls to zero is the normal end of a request."""
    assert not play(
        hold("h", [*P, 5]),
        finish("h"),
        pool(free=6, cached=2, held=0),
        evict(2),
        pool(free=8, cached=0, held=0),
    )


def test_r06_only_the_matched_part_of_an_edge_is_held() -> None:
    """A long edge is split where a request leaves it, and nothing stays locked."""
    assert not play(
        run("a", [*P, 1, 1, 1, 1, 1]),
        hold("h", [*P, 2]),
        pool(free=4, cached=1, held=3),
        run("b", [*P, 3, 3, 3, 3, 3]),
        finish("h"),
        evict(8),
        pool(free=8, cached=0, held=0),
    )


def test_r07_a_failed_admission_holds_nothing() -> None:
    """However often a request that can never fit is tried and aborted."""
    tries = [
        op
        for n in range(100)
        for op in (
            hold(f"w{n}", [*P, *range(12)], expect="reject"),
            abort(f"w{n}"),
            pool(free=3, cached=1, held=0),
        )
    ]
    assert not play(run("a", P[:5]), *tries, pool_blocks=4)


def test_r07_a_request_that_waits_holds_nothing() -> None:
    """Its match pins nothing while there is no room for the rest, tried however often."""
    crowded = pool(free=1, cached=1, held=4)
    tries = [
        op
        for n in range(100)
        for op in (hold(f"w{n}", [*P, 6, 6, 6, 6], expect="wait"), crowded, abort(f"w{n}"), crowded)
    ]
    assert not play(
        run("a", P[:5]),
        hold("x", [*range(20, 36)]),
        *tries,
        finish("x"),
        hold("w", [*P, 6, 6, 6, 6]),
        cached("w", 4),
        pool(held=3),
        pool_blocks=6,
    )


def test_r10_ending_what_has_ended_does_nothing() -> None:
    """Unknown and finished ids are no work and no error, where the script says so."""
    assert not play(
        run("a", P),
        abort("a", expect="noop"),
        finish("a", expect="noop"),
        abort("never", expect="noop"),
        finish("never", expect="noop"),
        hold("b", P),
        abort("b"),
        abort("b"),
        pool(free=6, cached=2, held=0),
    )


def test_r14_a_prompt_extended_block_by_block_loses_its_tail_first() -> None:
    """Each request extends the last by one block; half of it evicted is its second half."""
    depth = 400
    tokens = list(range(depth))
    assert not play(
        *(run(f"r{n}", tokens[:n]) for n in range(1, depth + 1)),
        matched(tokens, depth - 1),
        pool(free=0, cached=depth),
        evict(depth // 2),
        matched(tokens, depth // 2),
        block_size=1,
        pool_blocks=depth,
    )


def test_r14_a_deep_chain_is_walked_without_recursion() -> None:
    """Nodes nested deeper than calls may be are matched, held, counted, split and evicted.

    Each node ends where some other prompt branches off, so that none can be merged with the next.
    """
    depth = 400
    tokens = list(range(depth))
    branches = [run(f"b{n}", [*tokens[:n], depth + n]) for n in range(depth - 1, 0, -1)]
    with calls_at_most(120):
        assert not play(
            run("whole", tokens, []),
            *branches,
            matched([*tokens, 1], depth),
            pool(free=1, cached=2 * depth - 1, held=0),
            hold("deep", [*tokens, 1]),
            pool(free=0, cached=depth - 1, held=depth + 1),
            abort("deep"),
            evict(depth - 1),  # the branches, which are older
            matched([*tokens, 1], depth),
            evict(depth // 2),
            matched(tokens, depth // 2),
            {"op": "bump"},
            pool(free=2 * depth, cached=0, held=0),
            block_size=1,
            pool_blocks=2 * depth,
        )


@contextmanager
def calls_at_most(n_more: int) -> Iterator[None]:
    """Within it, calls nested more than `n_more` deep raise RecursionError."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + n_more)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def test_r18_a_request_that_ends_inside_a_block_frees_it_once() -> None:
    """What is kept and what is freed meet inside a block."""
    assert not play(
        run("a", [*P[:6]]),
        hold("h", [*P, 5, 5]),
        finish("h", [6, 6]),
        pool(free=6, cached=2, held=0),
        hold("i", [*P, 5, 5]),
        abort("i"),
        pool(free=6, cached=2, held=0),
    )


def test_s03_a_request_of_the_old_epoch_stores_nothing_in_the_new() -> None:
    """Neither what it computes later nor what it had matched."""
    assert not play(
        run("a", P),
        hold("r", [*P, 5]),
        {"op": "bump"},
        pool(free=5, cached=0, held=3),
        finish("r", [1, 2, 3, 4, 5]),
        matched([*P, 5], 0),
        pool(free=8, cached=0, held=0),
    )


@pytest.mark.parametrize("other", ["adapter:load-2", {"adapter": "load-2"}, {"salt": "s"}])
def test_s06_s07_equal_tokens_of_other_weights_share_nothing(other: object) -> None:
    """Nor does the other's run harm what is stored."""
    assert not play(
        run("a", [*P, 5], ns="adapter:load-1"),
        run("b", [*P, 5], ns=other),
        run("c", [*P, 5]),
        run("d", [*P, 5], ns="adapter:load-1"),
        *(cached(name, 0) for name in "abc"),
        cached("d", 8),
    )


def test_k06_the_parts_of_a_namespace_are_typed() -> None:
    """A salt spelled like an adapter is not that adapter, nor is text or a field of ours."""
    names = [
        {field: "blue"} for field in ("adapter", "salt", "model", "tenant", "kv_format", "colour")
    ]
    for stored in [*names, "blue", '{"colour": "blue"}', {"colour": 5}, {"colour": "5"}]:
        others = [ns for ns in [*names, "blue", None] if ns != stored]
        assert not play(run("a", P, ns=stored), *(matched(P, 0, ns=ns) for ns in others))


def test_p01_what_can_never_fit_is_refused_and_blocks_nobody() -> None:
    """The next request is admitted."""
    assert not play(
        hold("big", list(range(40)), expect="reject"),
        run("small", P),
        cached("small", 0),
        pool_blocks=4,
    )


def test_t06_tokens_that_spell_the_same_text_are_not_the_same() -> None:
    """The match runs up to the first different id."""
    assert not play(
        run("a", [1, 2, 3], [40, 98, 98, 41]),
        matched([1, 2, 3, 40, 97, 41, 42], 4),
        matched([1, 2, 3, 40, 98, 98, 42], 6),
        block_size=1,
        pool_blocks=16,
    )


def test_a_request_waits_while_others_hold_the_pool() -> None:
    """It is admitted when they end; cached blocks are in nobody's way."""
    assert not play(
        run("a", P),
        hold("x", [*range(20, 30)]),
        hold("y", [*range(40, 50)], expect="wait"),
        finish("x", expect="ok"),
        hold("y", [*range(40, 50)]),
        pool(held=3),
        pool_blocks=5,
    )


def test_output_beyond_the_pool_keeps_what_fits() -> None:
    """A request that grows to the end of the pool still stores what was written."""
    assert not play(
        hold("other", [1, 1]),
        run("a", P, list(range(50, 70))),
        matched([*P, *range(50, 70)], 8),
        pool(held=1),
        pool_blocks=4,
    )
    missing: Op = {"op": "finish", "id": "h"}
    assert not play(hold("h", P), missing, matched([*P, 5], 8))


def test_k04_a_salt_only_narrows_a_tenants_own_namespace() -> None:
    """Who sends another tenant's salt finds nothing of that tenant's, with or without it."""
    alice, bob = {"tenant": "a", "salt": "s1"}, {"tenant": "b", "salt": "s1"}
    assert not play(
        run("a", [*P, 5], ns=alice),
        run("b", [*P, 5], ns=bob),
        run("c", [*P, 5], ns={"tenant": "a"}),
        run("d", [*P, 5], ns={"salt": "s1"}),
        *(cached(name, 0) for name in "abcd"),
        run("e", [*P, 5], ns=alice),
        cached("e", 8),
        pool_blocks=16,
    )


def test_s02_an_invalidation_succeeds_while_requests_run() -> None:
    """The prompt that is sent again is computed again, and shared from then on."""
    assert not play(
        hold("r", [*P, 5]),
        {"op": "bump"},
        run("s", [*P, 5]),
        cached("s", 0),
        pool(free=3, cached=2, held=3),
        finish("r", [1, 2, 3, 4, 5]),
        run("t", [*P, 5]),
        cached("t", 8),
        pool(free=6, cached=2, held=0),
    )


def test_s09_each_load_has_a_namespace_of_its_own() -> None:
    """Whatever its version is called; what the last load stored is not what this one finds."""
    loads = [{"model": "v1", "kv_format": f"load-{n}"} for n in range(3)]
    assert not play(
        *(op for n, ns in enumerate(loads) for op in (run(f"r{n}", P, ns=ns), cached(f"r{n}", 0))),
        *(matched([*P, 5], 8, ns=ns) for ns in loads),
    )


def test_p02_two_prompts_that_fit_one_at_a_time_both_complete() -> None:
    """The second has nothing of the pool while it waits, so the first can go on."""
    first, second = list(range(56)), list(range(100, 156))
    assert not play(
        hold("a", first),
        hold("b", second, expect="wait"),
        pool(free=6, cached=0, held=14),
        finish("a"),
        hold("b", second),
        pool(free=0, cached=6, held=14),
        finish("b"),
        pool(held=0),
        pool_blocks=20,
    )


def test_p17_cached_blocks_are_told_from_held_and_free_ones() -> None:
    """Idle, nothing is held and all are accounted for; the next request evicts and runs."""
    assert not play(
        *(run(f"r{n}", [n, 1, 2, 3, 4]) for n in range(8)),
        pool(free=1, cached=7, held=0),
        run("next", [*range(20, 29)]),
        pool(free=1, cached=7, held=0),
    )


def test_r10_an_id_may_be_used_again_after_its_request_ended() -> None:
    """A late abort of the first one's work does not reach the second's."""
    assert not play(
        hold("a", P),
        finish("a"),
        hold("a", [*P, 5]),
        cached("a", 8),
        pool(held=3),
        abort("a"),
        abort("a"),
        pool(free=6, cached=2, held=0),
    )
