"""The comparison of pruned state with all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefixcache.bench.kv_formats import long_text
from prefixcache.bench.kv_pruning import compare_prunings, prunings_table
from prefixcache.bench.quality import as_data
from prefixcache.config import EngineConfig
from prefixcache.errors import ConfigError
from tests.support.models import write_tiny_model


def silent(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder: Path = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return EngineConfig(model=str(folder), kv_memory_bytes=16 << 20, threads=1)


def test_what_is_dropped_counts_and_what_is_not_does_not(config: EngineConfig) -> None:
    """Of a piece the tokens behind both parts are counted, and more kept is nearer."""
    text = long_text()[:500]
    rows = compare_prunings(config, ["4+8", "4+100", "100+300"], text, env={}, report=silent)
    assert [row.kv_prune for row in rows] == ["4+8", "4+100", "100+300"]
    assert rows[0].tokens - rows[1].tokens == 92  # in one piece
    assert rows[1].tokens - rows[2].tokens == 296
    assert rows[0].quality.kl_mean > rows[1].quality.kl_mean > rows[2].quality.kl_mean > 0
    assert rows[0].whole_perplexity != rows[0].quality.perplexity
    assert len(prunings_table(rows).splitlines()) == 4
    assert as_data(rows)[1]["kv_prune"] == "4+100"


def test_all_that_is_seen_is_no_distance(config: EngineConfig) -> None:
    """A setting by which only the last token lacks one key differs there alone, by less."""
    text = long_text()[:500]
    (wide,) = compare_prunings(config, ["4+8"], text, env={}, report=silent)
    n_tokens = wide.tokens + 12
    (row,) = compare_prunings(config, [f"4+{n_tokens - 6}"], text, env={}, report=silent)
    assert row.tokens == 2
    assert row.quality.kl_max < wide.quality.kl_mean


def test_what_drops_nothing_is_refused(config: EngineConfig) -> None:
    """Figures of it would be those of all tokens kept."""
    with pytest.raises(ConfigError, match="drops nothing of"):
        compare_prunings(config, ["4+8", "4+8000"], long_text()[:500], env={}, report=silent)
