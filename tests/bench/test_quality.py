"""The comparison of packed weights with float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prefixcache.bench.quality import as_data, as_table, compare, own_text
from prefixcache.config import EngineConfig
from prefixcache.engine.weights.choice import is_usable
from prefixcache.engine.weights.quality import quality
from prefixcache.errors import ConfigError
from tests.support.models import write_tiny_model


def silent(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder: Path = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder)
    return EngineConfig(model=str(folder), kv_memory_bytes=16 << 20, threads=1)


def test_equal_predictions_have_no_distance() -> None:
    """A model agrees with itself, and its perplexity is that of its own probabilities."""
    even = torch.full((5, 8), 1 / 8).log()
    found = quality(even, even, [1, 2, 3, 4, 5])
    assert found.perplexity == pytest.approx(8.0)
    assert (found.kl_mean, found.kl_max, found.agreement) == (0.0, 0.0, 1.0)


def test_distance_is_that_of_the_reference() -> None:
    """KL is from the reference to what was found, by the token."""
    reference = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log()
    found = quality(torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log(), reference, [0, 0])
    assert found.kl_max == pytest.approx(0.5 * torch.tensor(4 / 3).log().item(), rel=1e-5)
    assert found.kl_mean == pytest.approx(found.kl_max / 2)
    assert found.perplexity == pytest.approx(4 / 3)


@pytest.mark.skipif(not is_usable("int8"), reason="no kernel on this machine")
def test_float32_comes_first_and_the_others_stay_near(config: EngineConfig) -> None:
    """16 bits are nearer than int8; both are faithful."""
    rows = list(
        compare(config, ["16bit", "int8"], own_text()[:300], repeats=1, env={}, report=silent)
    )
    assert [row.weights for row in rows] == ["float32", "16bit", "int8"]
    assert rows[0].quality.kl_mean == 0.0
    assert rows[0].quality.agreement == 1.0
    assert rows[1].quality.kl_mean < rows[2].quality.kl_mean < 0.2
    assert all(row.prompt_ms > 0 and row.rows_ms > 0 for row in rows)
    assert len(as_table(rows).splitlines()) == 4
    assert as_data(rows)[2]["kind"] == "int8"


def test_text_that_is_too_short_is_refused(config: EngineConfig) -> None:
    """A few tokens say nothing."""
    with pytest.raises(ConfigError, match="at least 64"):
        list(compare(config, ["16bit"], "short", repeats=1, env={}, report=silent))
