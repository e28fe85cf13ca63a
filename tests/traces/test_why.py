"""Why a trace hits: small traces of which everything is known."""

from __future__ import annotations

from prefixcache.index.policies import LruPolicy
from prefixcache.traces import TraceRequest, simulate
from prefixcache.traces.why import Turns, explain, n_common
from tests.traces.plain import trace
from tests.traces.public import needs_traces, public_trace


def turn(conversation: str, second: float, *ids: int) -> TraceRequest:
    return TraceRequest(second, 4 * len(ids), 1, ids, 4, conversation=conversation)


def test_distances_are_the_room_that_hits_need() -> None:
    """One block comes back at once, two after two others."""
    why = explain(trace((1,), (1,), (2, 3), (4, 5), (2, 3)))
    assert why.hit_blocks == 3
    assert why.distances == [(1, 1), (2, 1), (4, 3)]


def test_pauses_are_the_time_between_uses() -> None:
    """Within a second, or three seconds later; each line includes those before."""
    requests = [turn("a", 0, 1), turn("a", 0.5, 1), turn("a", 3.5, 1)]
    assert explain(requests).pauses == [(1, 1), (2, 1), (4, 2)]


def test_hits_in_a_conversation_are_told_from_those_across() -> None:
    """The turn before had one block of the two that were cached."""
    requests = [turn("a", 0, 1, 2), turn("b", 1, 1), turn("b", 2, 1, 2)]
    why = explain(requests)
    assert (why.hit_blocks, why.own_hit_blocks) == (3, 1)


def test_without_conversations_nothing_is_said_of_them() -> None:
    """Unknown is not none."""
    assert explain(trace((1,), (1,))).own_hit_blocks is None


def test_turns_are_sorted_by_what_they_keep() -> None:
    """Going on, with a last block that was not full; or parting early or late."""
    turns = Turns()
    prompts = [
        (1, 2, 3, 4, 5),
        (1, 2, 3, 4, 6, 7),  # goes on
        (1, 2, 3, 4, 6, 7, 8, 9),  # goes on
        (1, 2, 3, 4, 6, 7, 0, 0),  # keeps 6 of 8
        (1, 2, 3, 4, 0),  # 4 of 8
        (1, 0),  # 1 of 5
        (9,),
    ]
    owned = [turns.n_own(turn("a", 0, *ids)) for ids in prompts]
    assert owned == [0, 4, 6, 6, 4, 1, 0]
    assert dict(turns.kept) == {
        "goes on": 2,
        "at least 3/4": 1,
        "at least half": 1,
        "less than half": 1,
        "nothing": 1,
    }


def test_common_ids_are_the_leading_ones() -> None:
    """Whichever is longer."""
    assert n_common((1, 2, 3), (1, 2)) == n_common((1, 2), (1, 2, 3)) == 2
    assert n_common((1, 2), (2, 2)) == n_common((), (1,)) == 0


def test_tenants_are_listed_with_their_own() -> None:
    """Most blocks first."""
    a = TraceRequest(0.0, 8, 1, (1, 2), 4, tenant="a")
    b = TraceRequest(1.0, 4, 1, (1,), 4, tenant="b")
    assert explain([b, a, a]).tenants == [("a", 4, 3), ("b", 1, 0)]


def test_an_empty_trace_has_nothing_to_explain() -> None:
    """No division, no maximum of nothing."""
    why = explain([])
    assert (why.shared, why.pauses, why.hit_blocks) == ([], [], 0)


@needs_traces
def test_the_conversation_trace_is_explained() -> None:
    """Its hits are those of a cache that keeps everything; distances are those of the policy."""
    requests = public_trace("conversation_trace.jsonl")
    why = explain(requests)
    assert why.hit_blocks == 105_710
    distances = dict(why.distances)
    known = simulate(requests, policy=LruPolicy, capacity_blocks=4096)
    assert distances[4096] == known.hit_blocks
    assert why.shared[0].requests > 1000
