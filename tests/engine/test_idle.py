"""What an idle engine does: prefixes are brought together, and answers stay what they are."""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

import pytest
import torch

from prefixcache.engine import idle
from prefixcache.engine.index_groups import IndexGroups
from prefixcache.errors import ConfigError
from prefixcache.index.spans import Runs
from prefixcache.index.tree import nodes, runs_to
from prefixcache.types import BlockId, PoolCounts, Span
from tests.support.models import Bench, oracle, prompt_ids

BLOCK = 64  # so that runs of up to four are short ones
ANSWER = 240
GROWING: dict[str, Any] = {"block_size_tokens": BLOCK, "growth_blocks": 0, "compaction": "auto"}


@pytest.fixture(autouse=True)
def short_prompts_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tiny model can read is too little for it otherwise."""
    monkeypatch.setattr(idle, "CALL_TOKENS", 0)


class Conversations:
    """Two answers that have grown side by side, and were read once more since."""

    def __init__(self, architecture: str = "llama", n_blocks: int = 14, **settings: Any) -> None:
        self.bench = Bench(architecture, n_blocks=n_blocks, **(GROWING | settings))
        self.prompts = [prompt_ids(150, seed=seed) for seed in (1, 2)]
        for name, prompt in zip("ab", self.prompts, strict=True):
            self.bench.submit(name, prompt, ANSWER)
        self.bench.drain()
        self.texts = [
            [*prompt, *self.bench.answers[name].token_ids]
            for name, prompt in zip("ab", self.prompts, strict=True)
        ]
        for text in self.texts:
            self.bench.run(text, 1)

    @property
    def engine(self) -> Any:
        return self.bench.engine

    def rest(self) -> int:
        """Step until nothing is left to do, and return how many steps that took."""
        for n_steps in count():
            if self.engine.seconds_to_next_look is None:
                return n_steps
            assert self.bench.step() == []
        raise AssertionError

    def paths(self, group: int) -> list[Runs]:
        """Where each cached path lies."""
        leaves = (
            node
            for anchor in self.engine.cache._core.forest
            for node in nodes(anchor)
            if node.n_blocks and node.children is None
        )
        return [runs_to(leaf)[group] for leaf in leaves]

    def poison(self) -> None:
        """Write NaN to all that is free."""
        store, groups = self.bench.loaded.store, IndexGroups.of(self.bench.loaded.store)
        for group in groups.of_store():
            is_window, index = self.engine.cache._core.places[group]
            pools = self.engine.cache._core.windows if is_window else self.engine.cache._core.pools
            for first, n_blocks in pools.pools[index].free_spans():
                for plane in store._planes[group - groups.n_added]:
                    plane[:, :, first * BLOCK : (first + n_blocks) * BLOCK] = torch.nan


@pytest.mark.parametrize(
    ("architecture", "n_blocks"),
    [
        ("llama", 14),
        pytest.param("gpt2", 14, marks=pytest.mark.slow),
        ("gemma2", 14),
        pytest.param("gpt-oss", 16, marks=pytest.mark.slow),
    ],
)
def test_answers_after_compaction_are_those_of_a_solo_run(architecture: str, n_blocks: int) -> None:
    """Both go on from what was moved, whatever was written to what is free, as if alone."""
    talk = Conversations(architecture, n_blocks)
    before = talk.engine.stats()
    talk.rest()
    stats = talk.engine.stats()
    assert stats.moved_blocks_total > 0
    assert (stats.pool, stats.evicted_blocks_total) == (before.pool, before.evicted_blocks_total)
    assert max(len(runs) for runs in talk.paths(0)) <= 2
    talk.poison()
    for text, seed in zip(talk.texts, (3, 4), strict=True):
        longer = [*text, *prompt_ids(9, seed=seed)]
        answer = talk.bench.run(longer, 12)
        assert answer.cached_tokens is not None
        assert answer.cached_tokens >= 5 * BLOCK
        assert oracle(talk.bench.reference, longer, 12).is_same(answer.token_ids)


def test_a_pool_that_is_full_is_compacted() -> None:
    """Blocks change places, so none has to be free."""
    talk = Conversations(n_blocks=13)
    talk.bench.run(prompt_ids(BLOCK, seed=9), 1)
    free = talk.engine.stats().pool.free
    if free:
        talk.bench.run(prompt_ids(BLOCK * free, seed=8), 1)
    assert talk.engine.stats().pool == PoolCounts(free=0, cached=13, held=0)
    talk.rest()
    assert talk.engine.stats().moved_blocks_total > 0
    for text in talk.texts:
        longer = [*text, 5]
        expected = oracle(talk.bench.reference, longer, 6)
        assert expected.is_same(talk.bench.run(longer, 6).token_ids)


def test_who_comes_in_the_middle_is_answered_at_once() -> None:
    """A request is admitted by the next step, reads what it should, and the rest follows later."""
    talk = Conversations()
    talk.engine._idle._clock = count().__next__  # each look at it is a slice later
    while not talk.engine.stats().moved_blocks_total:
        talk.bench.step()
    moved = talk.engine.stats().moved_blocks_total
    for text in talk.texts:
        longer = [*text, 7]
        expected = oracle(talk.bench.reference, longer, 6)
        assert expected.is_same(talk.bench.run(longer, 6).token_ids)
        assert talk.engine.stats().moved_blocks_total == moved
    talk.rest()
    assert talk.engine.stats().moved_blocks_total > moved


def test_a_slice_is_a_piece_at_least_and_ends_in_time() -> None:
    """However slow the machine is, an idle step moves four blocks at most before it looks."""
    talk = Conversations()
    talk.engine._idle._clock = count().__next__
    moved = [0]
    while talk.engine.seconds_to_next_look is not None:
        talk.bench.step()
        moved.append(talk.engine.stats().moved_blocks_total)
    pieces = [after - before for before, after in pairwise(moved)]
    assert 0 < max(pieces) <= 8


@pytest.mark.parametrize(
    "settings", [{"compaction": "off"}, {"prefix_cache": False}, {"kv_format": "int8"}]
)
def test_where_it_brings_nothing_nothing_is_moved(settings: dict[str, Any]) -> None:
    """It is off, there is nothing to move, or runs are decoded before they are read."""
    talk = Conversations(**settings)
    assert talk.engine.seconds_to_next_look is None
    talk.bench.step()
    assert talk.engine.stats().moved_blocks_total == 0


def test_short_prompts_do_not_pay_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call for a run in place costs more than to copy so few blocks."""
    monkeypatch.setattr(idle, "CALL_TOKENS", 1280)
    talk = Conversations()
    talk.rest()
    assert talk.engine.stats().moved_blocks_total == 0


def test_short_answers_do_not_pay_for_it() -> None:
    """What is moved must be read by some decode steps, or the copies cost more than they save."""
    talk = Conversations()
    for seed in range(60):
        talk.bench.run(prompt_ids(3, seed=seed), 1)
    talk.rest()
    assert talk.engine.stats().moved_blocks_total == 0


def test_a_copy_that_fails_is_logged_and_nobody_notices(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without memory for it nothing is moved, and the next request is served as ever."""
    talk = Conversations()

    def fail(*args: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(talk.bench.loaded.store, "move_blocks", fail)
    assert talk.rest() == 1
    assert "could not be compacted" in caplog.text
    longer = [*talk.texts[0], 3]
    expected = oracle(talk.bench.reference, longer, 4)
    assert expected.is_same(talk.bench.run(longer, 4).token_ids)


def test_an_idle_engine_looks_again_when_prefixes_are_overdue() -> None:
    """Once there is nothing to move, it sleeps until a quarter of their time has passed."""
    talk = Conversations(eviction_policy="ttl", idle_ttl_seconds=100.0)
    assert talk.engine.seconds_to_next_look == 0
    for _ in range(1000):
        talk.bench.step()
    assert talk.engine.seconds_to_next_look == 25.0


def span(first: int, n_blocks: int) -> Span:
    return Span(BlockId(first), n_blocks)


def test_blocks_are_copied_or_change_places_bit_for_bit() -> None:
    """In every plane of their group, and nowhere else."""
    store = Conversations().bench.loaded.store
    generator = torch.Generator().manual_seed(0)
    for plane in store._planes[0]:
        plane.normal_(generator=generator)
    before = [store.copy_out(0, span(block, 1)).clone() for block in range(8)]
    store.move_blocks(0, span(1, 2), BlockId(5), swaps=True)
    store.move_blocks(0, span(0, 1), BlockId(3), swaps=False)
    after = [store.copy_out(0, span(block, 1)) for block in range(8)]
    expected = [0, 5, 6, 0, 4, 1, 2, 7]
    assert all(torch.equal(after[i], before[j]) for i, j in enumerate(expected))


def test_a_setting_that_is_none_is_refused() -> None:
    """It is auto or off."""
    with pytest.raises(ConfigError, match="compaction"):
        Bench(compaction="on")
