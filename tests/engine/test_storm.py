"""Whatever comes in whatever order: answers as alone, no leak, no end without an answer.

Every free block is full of NaN, so that a single stale read shows in a token.
"""

from __future__ import annotations

import pytest

from tests.support.storm import Storm


@pytest.mark.parametrize("seed", range(8))
def test_no_order_of_events_lets_a_request_read_foreign_memory(seed: int) -> None:
    """Cancels, preemptions, evictions, priorities and tenants change no answer."""
    storm = Storm(seed)
    storm.run(35)
    storm.check_end()


@pytest.mark.parametrize("seed", range(3))
def test_a_preemption_before_every_step_changes_no_answer(seed: int) -> None:
    """Somebody who runs gives way each time, and all go on all the same."""
    storm = Storm(100 + seed, preempt_rate=1, cancel_rate=0.02)
    storm.run(20)
    storm.check_end()
    assert storm.engine.stats().preemptions_total > 20


@pytest.mark.parametrize("seed", range(4))
def test_drafts_right_and_wrong_change_no_answer(seed: int) -> None:
    """Where much is asked again, many guesses are right, and many are not."""
    storm = Storm(
        200 + seed,
        repeat_rate=0.7,
        cancel_rate=0.03,
        preempt_rate=0.05,
        max_step_tokens=64,
        max_draft_tokens=15,
        n_tokens=400,
    )
    storm.run(60, rate=0.3)
    storm.check_end()
    stats = storm.engine.stats()
    assert 10 < stats.accepted_tokens_total < stats.drafted_tokens_total


def test_a_crowded_pool_serves_hundreds() -> None:
    """Many more requests than room: all are served, and the pool is as it was before."""
    storm = crowded(7)
    storm.run(250, rate=0.9)
    storm.check_end()
    stats = storm.engine.stats()
    assert stats.evicted_blocks_total > 100
    assert stats.drafted_tokens_total > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_crowded_pool_serves_thousands(seed: int) -> None:
    """10,000 requests over four runs."""
    storm = crowded(1000 + seed)
    storm.run(2500, rate=0.9)
    storm.check_end()


def crowded(seed: int) -> Storm:
    return Storm(
        seed,
        preempt_rate=0.05,
        cancel_rate=0.05,
        architecture="llama",
        n_tokens=200,
        block_size_tokens=4,
        max_step_tokens=64,
        max_running_requests=8,
        max_waiting_requests=100_000,
        admission_order="cache-aware",
        max_overtakes=4,
        prefix_cache=True,
    )
