"""The comparison of KV formats with the model's own numbers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from prefixcache.bench.kv_formats import (
    PIECE_TOKENS,
    compare_formats,
    formats_table,
    long_text,
)
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
    return EngineConfig(model=str(folder), kv_memory_bytes=16 << 20, threads=1, weights="float32")


def test_the_models_own_numbers_come_first_and_fewer_bits_are_farther(
    config: EngineConfig,
) -> None:
    """Bytes fall and distances grow from format to format; a text of several pieces counts once."""
    text = long_text()[:1500]
    rows = compare_formats(
        config, ["float16", "int8", "int4"], text, repeats=1, env={}, report=silent
    )
    assert [row.kv_format for row in rows] == ["auto", "float16", "int8", "int4"]
    assert (rows[0].quality.kl_mean, rows[0].quality.agreement, rows[0].step_ratio) == (0, 1, 1)
    for one, other in pairwise(rows[1:]):
        assert one.bytes_per_token > other.bytes_per_token
        assert 0 < one.quality.kl_mean < other.quality.kl_mean
    assert rows[0].tokens == rows[3].tokens > 512  # the tiny model's most: so there were pieces
    assert len(formats_table(rows).splitlines()) == 5
    assert as_data(rows)[2]["kv_format"] == "int8"


def test_the_long_text_is_long_enough() -> None:
    """At least ten thousand tokens of four characters, in several pieces."""
    assert len(long_text()) > 4 * 10_000 > 4 * PIECE_TOKENS


def test_what_cannot_be_compared_is_refused(config: EngineConfig) -> None:
    """A few tokens say nothing, and a format that a device lacks has no figures."""
    with pytest.raises(ConfigError, match="at least 64"):
        compare_formats(config, ["int8"], "short", repeats=1, env={}, report=silent)
    with pytest.raises(ConfigError, match="fp8"):
        compare_formats(config, ["fp8"], long_text(), repeats=1, env={}, report=silent)
