"""The measurement of tiers measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixcache.bench.tiers import as_data, as_table, measure, measure_load, with_pool
from tests.support.models import Bench
from tests.support.tiers import MemoryTier


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have requests wait for a tier whose thread gets little of a busy machine."""
    monkeypatch.setattr("prefixcache.engine.tiers.ahead._LEAST_WAIT_SECONDS", 10.0)


@pytest.fixture
def bench() -> Bench:
    """A tiny model whose weights are named, as tiers need it."""
    return Bench(lasting={}, tier_loading="always")


def test_each_prompt_is_found_where_it_is_said_to_be(bench: Bench, tmp_path: Path) -> None:
    """Computed once; then all but the last token, or all whole blocks, come from each place."""
    lines: list[str] = []
    rows = list(
        measure(
            bench.loaded,
            bench.config,
            [40, 61],
            tmp_path,
            report=lines.append,
            remote=MemoryTier,
        )
    )
    found = [(row.source, row.prompt_tokens, row.cached_tokens) for row in rows]
    assert found[:6] == [
        ("computed", 40, 0),
        ("device", 40, 39),
        ("host", 40, 39),
        ("computed", 61, 0),
        ("device", 61, 60),
        ("host", 61, 60),
    ]
    assert found[6:8] == [("disk", 40, 39), ("disk", 61, 60)]
    assert [source for source, _, _ in found[8:]] == ["remote", "remote"]
    assert all(row.seconds > 0 for row in rows)
    assert any("61 tokens: computed" in line for line in lines)


def test_prompts_may_be_longer_than_the_pool_that_the_model_came_with(tmp_path: Path) -> None:
    """The pool is made for what is measured, whatever the model was loaded with."""
    small = Bench(n_blocks=12, lasting={}, tier_loading="always")
    rows = list(measure(small.loaded, small.config, [61], tmp_path, report=lambda line: None))
    assert {row.prompt_tokens for row in rows} == {61}


def test_a_workload_twice_the_pool_is_found_in_the_tiers(bench: Bench, tmp_path: Path) -> None:
    """Alone the pool has given up each prompt before it comes again; the tiers have it."""
    loads = list(measure_load(bench.loaded, bench.config, 40, tmp_path, report=lambda line: None))
    assert [load.tiers for load in loads] == ["none", "host", "host+disk"]
    none, host, both = loads
    assert none.hit_rate == 0
    assert host.hit_rate == both.hit_rate == 39 / 40
    assert host.host_tokens == 16 * 39
    assert both.disk_tokens > 0
    assert both.host_bytes < host.host_bytes
    table = as_table([], loads)
    assert "host+disk" in table
    assert as_data(loads)[0]["requests"] == 16


def test_a_pool_of_another_size_serves_the_same_model(bench: Bench) -> None:
    """So that the model is loaded once."""
    small = with_pool(bench.loaded, bench.config, 33)
    assert small.store.n_blocks == small.info.pool_blocks == 9
    assert small.info.load_id == bench.loaded.info.load_id
