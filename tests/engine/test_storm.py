"""Whatever comes in whatever order: answers as alone, no leak, no end without an answer.

Every free block is full of NaN, so that a single stale read shows in a token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.adapter_storm import AdapterStorm
from tests.support.storm import Storm, seeds

CROWDED: dict[str, Any] = {
    "preempt_rate": 0.05,
    "cancel_rate": 0.05,
    "architecture": "llama",
    "n_tokens": 200,
    "block_size_tokens": 4,
    "max_step_tokens": 64,
    "max_running_requests": 8,
    "max_waiting_requests": 100_000,
    "admission_order": "cache-aware",
    "max_overtakes": 4,
    "prefix_cache": True,
}


@pytest.mark.parametrize("seed", seeds(8, 0, 3, 5, 7))
def test_no_order_of_events_lets_a_request_read_foreign_memory(seed: int) -> None:
    """Cancels, preemptions, evictions, priorities and tenants change no answer."""
    Storm(seed).survive(35)


@pytest.mark.parametrize("seed", seeds(3, 0))
def test_a_preemption_before_every_step_changes_no_answer(seed: int) -> None:
    """Somebody who runs gives way each time, and all go on all the same."""
    storm = Storm(100 + seed, preempt_rate=1, cancel_rate=0.02).survive(20)
    assert storm.engine.stats().preemptions_total > 20


@pytest.mark.parametrize("seed", seeds(4, 0, 1))
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
    storm.survive(60, rate=0.3)
    stats = storm.engine.stats()
    assert 10 < stats.accepted_tokens_total < stats.drafted_tokens_total


@pytest.mark.parametrize("architecture", ["llama", "qwen2-mixed"])
def test_adapters_come_and_go_and_change_no_answer(tmp_path: Path, architecture: str) -> None:
    """Each request ends with the weights that it began with, whatever is loaded meanwhile."""
    storm = AdapterStorm(tmp_path, 300, architecture=architecture, preempt_rate=0.1)
    storm.survive(80, rate=0.7)
    assert storm.n_changes > storm.n_unloads > 0


def test_a_crowded_pool_serves_hundreds() -> None:
    """Many more requests than room: all are served, and the pool is as it was before."""
    stats = Storm(7, **CROWDED).survive(250, rate=0.9).engine.stats()
    assert stats.evicted_blocks_total > 100
    assert stats.drafted_tokens_total > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_crowded_pool_serves_thousands(tmp_path: Path, seed: int) -> None:
    """10,000 requests over four runs, two of three with an adapter that comes and goes."""
    AdapterStorm(tmp_path, 1000 + seed, change_rate=0.01, **CROWDED).survive(2500, rate=0.9)
